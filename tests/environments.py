"""Environments of their own for other people's programs, and scripts that run in them against a server.

`tests/environments/NAME.txt` names pinned packages of PyPI, `tests/environments/NAME/package.json` (with its lock)
packages of npm; what they say is installed once, outside the checkout, and kept for later runs. A script of
`tests/clients/` runs there, takes the server's URL as its first argument, and prints what it saw as JSON; none of our
code can be imported by it.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pytest

HERE = Path(__file__).parent
KEPT = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "onebert-tests"
# Seconds: for what comes over a network, and for a script (one block of a page has twelve trainings) on a busy machine.
INSTALLING, RUNNING = 1800, 600
# What pytest's own process runs with, and what would keep a client from asking anybody.
OURS = ("PYTHON", "ONEBERT_", "HF_", "COV_", "PYTEST_", "TRITON_", "VIRTUAL_ENV")


def foreign_env(**variables: str) -> dict[str, str]:
    """The environment variables of other people's programs: this process's less ours, with those given."""
    inherited = {name: value for name, value in os.environ.items() if not name.startswith(OURS)}
    return inherited | {"NO_PROXY": "127.0.0.1,localhost", "PYTHONUNBUFFERED": "1"} | variables


def printed(
    command: Sequence[str | Path], folder: Path, env: dict[str, str], given: str = "", seconds: float = RUNNING
) -> str:
    """What a command prints that is given something to read; fails with all that it said where it does not end well."""
    done = subprocess.run(
        command, input=given, cwd=folder, env=env, capture_output=True, text=True, timeout=seconds, check=False
    )
    assert done.returncode == 0, "\n".join([*map(str, command), given, done.stdout, done.stderr])
    return done.stdout


@dataclass(frozen=True)
class Environment:
    """A folder with installed packages; `interpreter` is the command that runs a script from its standard input."""

    folder: Path
    interpreter: tuple[str | Path, ...]

    def program(self, name: str) -> Path:
        """A program that came with the packages."""
        return self.folder / "bin" / name

    def prints(self, code: str, *arguments: object, folder: Path | None = None, **variables: str) -> str:
        """What code prints in a folder, else the environment's own."""
        command = [*self.interpreter, "-", *map(str, arguments)]
        return printed(command, folder or self.folder, foreign_env(**variables), code)

    def run(self, script: str, *arguments: object, **variables: str) -> object:
        """What a script of `tests/clients/` prints as JSON."""
        code = (HERE / "clients" / script).read_text(encoding="utf-8")
        return json.loads(self.prints(code, *arguments, **variables))


@cache
def python_environment(name: str, folder: Path = HERE / "environments") -> Environment:
    """A virtual environment of this Python with what `NAME.txt` in the folder names."""
    requirements = folder / f"{name}.txt"

    def install(place: Path) -> None:
        printed([sys.executable, "-m", "venv", place], HERE, foreign_env())
        # Isolated: PYTHONPATH and the user's own packages are none of its business.
        _installed([place / "bin/python", "-I", "-m", "pip", "install", "--quiet", "--requirement", requirements])

    made = _kept(name, [sys.version.encode(), requirements.read_bytes()], install)
    return Environment(made, (made / "bin/python", "-I"))


@cache
def node_environment(name: str, folder: Path = HERE / "environments") -> Environment:
    """A folder with the npm packages of `NAME/package.json` in the folder, exactly those of the lock beside it."""
    node, npm = (shutil.which(program) or _lacking(program) for program in ("node", "npm"))
    files = [folder / name / file for file in ("package.json", "package-lock.json")]

    def install(place: Path) -> None:
        place.mkdir()
        for file in files:
            shutil.copy(file, place)
        _installed([npm, "ci", "--ignore-scripts", "--no-audit", "--no-fund"], place)

    version = subprocess.run([node, "--version"], capture_output=True, check=True).stdout
    made = _kept(name, [version, *(file.read_bytes() for file in files)], install)
    return Environment(made, (node, "--input-type=module"))


def _lacking(program: str) -> str:
    pytest.fail(f"this test needs {program} on the PATH: install Debian's nodejs and npm (.ci/run does)")


def _kept(name: str, contents: list[bytes], install: Callable[[Path], None]) -> Path:
    """The folder of what is installed.

    Its last file says that it is whole: programs inside know their own path, so it could not be renamed when it is.
    """
    digest = hashlib.sha256(b"\0".join(contents)).hexdigest()[:16]
    place = KEPT / f"{name}-{digest}"
    whole = place / "installed"
    with _locked(KEPT / f"{place.name}.lock"):
        if not whole.exists():
            shutil.rmtree(place, ignore_errors=True)
            install(place)
            whole.touch()
    return place


@contextmanager
def _locked(path: Path):
    """Alone among all processes of this machine; the lock of a process that dies is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _installed(command: Sequence[str | Path], folder: Path = HERE) -> None:
    """Runs a command that installs; a second time, since what comes over a network may fail the first."""
    try:
        printed(command, folder, foreign_env(), seconds=INSTALLING)
    except AssertionError:
        printed(command, folder, foreign_env(), seconds=INSTALLING)
