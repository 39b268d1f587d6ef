"""The registry in SQLite: one file in a folder that one process owns."""

import fcntl
import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager, suppress
from functools import partial
from math import inf
from pathlib import Path
from time import monotonic, sleep
from typing import TextIO, TypeVar
from urllib.parse import quote, unquote

from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from onebert_store.disk import storage_errors_are_typed, sync
from onebert_store.errors import InvalidSettings, StorageFull, StorageUnavailable, StoreCorrupt, StoreLocked
from onebert_store.registry.dialects.database import NO_DATABASE, Database, Lock

T = TypeVar("T")

# Seconds that a writer waits for other writers, which hold the database for a few milliseconds each; a third of the
# time that a request has by default.
BUSY_TIMEOUT_S = 10.0
# Seconds that a reader, or a starting server, waits; only a program with an exclusive lock blocks readers.
READ_TIMEOUT_S = 5.0

# Seconds between two attempts to lock; below `PAUSE_S` of a sweep, so that uploads get in between batches.
_TURN_S = 0.001

# Bytes of a path that SQLite opens, its log beside it.
MAX_PATH = 504

# Bytes of a file that makes way for deletions on a full disk; at most a quarter of the room that was left.
RESERVE_BYTES = 2**22
# Pages of the write-ahead log that are copied into the database together. SQLite's 1,000 would be more than the reserve
# on a full disk, where they need room a second time.
LOG_PAGES = 100
# Seconds that an emptied log waits for readers of its pages.
LOG_WAIT_S = 0.5

_URL = "sqlite:///"
_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "another process holds it",
    sqlite3.SQLITE_LOCKED: "another process holds it",
    sqlite3.SQLITE_IOERR: "input/output error",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_PERM: "it cannot be opened",
}


def sqlite_url(path: Path) -> str:
    """Returns the URL of a SQLite file."""
    return _URL + quote(str(path))


class SqliteDatabase(Database):
    """A SQLite file, whose folder also holds the locks; commits survive a power cut."""

    shared = False
    seconds = "(julianday('now') - 2440587.5) * 86400.0"

    def __init__(self, path: Path) -> None:
        self.path = path
        engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": READ_TIMEOUT_S})
        event.listen(engine, "connect", _configure)
        event.listen(engine, "begin", _begin)
        super().__init__(str(path.absolute()), engine, engine.execution_options(onebert_writes=True))

    @classmethod
    def of_url(cls, url: str) -> "SqliteDatabase":
        """Opens `sqlite:///relative` or `sqlite:////absolute`, percent-encoded; raises InvalidSettings otherwise."""
        name = unquote(url.removeprefix(_URL))
        if not url.startswith(_URL) or not name or "?" in url or "#" in url:
            raise InvalidSettings("a SQLite registry is sqlite:///FILE, with the file's path percent-encoded")
        return cls(Path(name))

    @contextmanager
    def owned(self) -> Iterator[None]:
        folder = self.path.parent
        folder.mkdir(parents=True, exist_ok=True)
        with storage_errors_are_typed():
            sync(folder.parent)
        with self._lock_file() as lock:
            if not _locked_now(lock):
                raise StoreLocked("another process is using this store")
            self._refuse_other()
            yield

    @contextmanager
    def joined(self) -> Iterator[Callable[[], bool]]:
        self._refuse_other()
        if not self.path.exists():
            raise StoreCorrupt(NO_DATABASE)
        with self._lock_file() as lock:
            yield lambda: _locked_now(lock)

    @contextmanager
    def typed_errors(self) -> Iterator[None]:
        try:
            yield
        except DBAPIError as error:
            # The low byte is the kind of error; the other bytes locate it.
            code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
            if code == sqlite3.SQLITE_FULL:
                raise StorageFull("the disk has no room for this") from error
            if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
                raise StoreCorrupt("the store's database is damaged") from error
            if code == sqlite3.SQLITE_CANTOPEN and len(os.fsencode(self.where)) > MAX_PATH:
                raise StorageUnavailable(
                    f"the store's path is longer than the {MAX_PATH} bytes that SQLite opens: {self.where}"
                ) from error
            if reason := _UNAVAILABLE.get(code):
                raise StorageUnavailable(f"the store's database does not work: {reason}") from error
            if str(error.orig).startswith("no such "):
                raise StoreCorrupt(f"{self.path.name} lacks tables or columns of OneBERT") from error
            raise

    def erase(self, work: Callable[[Connection], T], until: float = inf) -> T:
        # First: a transaction that a full disk refuses would leave no room to copy the log.
        self._empty_log(until)
        try:
            return super().erase(work, until)
        except StorageFull:
            self._reserve.unlink(missing_ok=True)
            self._empty_log(until)
            return super().erase(work, until)
        finally:
            self._empty_log(until)
            self._fill_reserve()

    def adding(self, until: float = inf) -> AbstractContextManager[Lock]:
        return self._flock(fcntl.LOCK_SH, until)

    def sweeping(self) -> AbstractContextManager[Lock]:
        return self._flock(fcntl.LOCK_EX)

    def schema_mark(self, connection: Connection) -> int:
        return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())

    def set_schema_mark(self, connection: Connection, number: int) -> None:
        """Marks the file's header as well, which every OneBERT reads."""
        super().set_schema_mark(connection, number)
        connection.exec_driver_sql(f"PRAGMA user_version = {number:d}")

    def integrity_errors(self, connection: Connection) -> list[str]:
        pages = [str(line) for line in connection.exec_driver_sql("PRAGMA quick_check").scalars() if line != "ok"]
        references = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
        return pages + [f"a row of {row[0]} refers to a row of {row[2]} that is not there" for row in references]

    @contextmanager
    def _flock(self, kind: int, until: float = inf) -> Iterator[Lock]:
        # Lock the blobs folder if it lies beside the database, as older versions of OneBERT do on the same folder. Each
        # holder opens its own descriptor, so that the lock also works between threads.
        with storage_errors_are_typed():
            blobs = self.path.with_name("blobs")
            handle = os.open(blobs if blobs.is_dir() else self.path.parent, os.O_RDONLY)
        try:
            # Bounded: a sweep may hang, or its process may be stopped.
            late = min(until, monotonic() + BUSY_TIMEOUT_S)
            while not _locked_now(handle, kind):
                if monotonic() >= late:
                    raise StorageUnavailable("the store's files are held by another process")
                sleep(_TURN_S)
            # The operating system's lock cannot be lost while the process lives.
            yield Lock(partial(self.writing, until), lambda: None)
        finally:
            os.close(handle)

    def _empty_log(self, until: float) -> None:
        # A database that others read, or one on a full disk, keeps its log until the next call.
        with suppress(sqlite3.Error), closing(self.writers.raw_connection()) as connection:
            wait = _milliseconds(LOG_WAIT_S, until)
            for pragma in (f"busy_timeout = {wait}", "wal_checkpoint(TRUNCATE)"):
                connection.cursor().execute(f"PRAGMA {pragma}")

    def _fill_reserve(self) -> None:
        with suppress(OSError), open(self._reserve, "ab") as file:
            room = min(RESERVE_BYTES, shutil.disk_usage(self.path.parent).free // 4)
            file.write(bytes(max(0, room - file.tell())))

    @property
    def _reserve(self) -> Path:
        return self.path.with_name("reserve")

    def _lock_file(self) -> TextIO:
        with storage_errors_are_typed():
            return open(self.path.with_name("lock"), "a", encoding="utf-8")

    def _refuse_other(self) -> None:
        if self.path.exists() and not self.path.is_file():
            name = self.path.name
            raise StoreCorrupt(f"{name} is not a file; put the database that goes with the blobs in its place")


def _configure(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    # SQLAlchemy's `begin` event starts transactions; the driver would start one only before a write.
    connection.isolation_level = None
    log = "journal_mode = WAL", f"wal_autocheckpoint = {LOG_PAGES}"
    for pragma in (*log, "synchronous = FULL", "foreign_keys = ON", "secure_delete = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    # SQLite rejects, without waiting, a transaction that reads first and writes after another one has written. BEGIN
    # IMMEDIATE waits for its turn instead.
    options = connection.get_execution_options()
    begin, limit = ("BEGIN IMMEDIATE", BUSY_TIMEOUT_S) if options.get("onebert_writes") else ("BEGIN", READ_TIMEOUT_S)
    connection.exec_driver_sql(f"PRAGMA busy_timeout = {_milliseconds(limit, options.get('onebert_until', inf))}")
    connection.exec_driver_sql(begin)


def _milliseconds(limit: float, until: float) -> int:
    """Returns how long SQLite waits: at most `limit` seconds, and until a time."""
    return round(1000 * max(0.0, min(limit, until - monotonic())))


def _locked_now(lock: TextIO | int, kind: int = fcntl.LOCK_EX) -> bool:
    with storage_errors_are_typed():
        try:
            fcntl.flock(lock, kind | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
