"""What differs between databases: how SQLite is opened, locked, and reports errors; no other file knows SQLite."""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, Table, create_engine, event
from sqlalchemy.dialects.sqlite import Insert, insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.pool import ConnectionPoolEntry

from onebert_store.errors import StorageFull, StorageUnavailable, StoreCorrupt

BUSY_TIMEOUT_S = 30.0
"""How long a writer waits for the others; each holds the database for a few milliseconds."""

WRITES: Mapping[str, Any] = {"onebert_writes": True}
"""Execution options of a transaction that will write."""

_UNAVAILABLE = {
    sqlite3.SQLITE_BUSY: "another process holds it",
    sqlite3.SQLITE_LOCKED: "another process holds it",
    sqlite3.SQLITE_IOERR: "input/output error",
    sqlite3.SQLITE_READONLY: "it is read-only",
    sqlite3.SQLITE_CANTOPEN: "it cannot be opened",
    sqlite3.SQLITE_PERM: "it cannot be opened",
}


def sqlite_engine(path: Path) -> Engine:
    """An engine on a SQLite file whose commits survive a power cut; the file is made by the first connection."""
    engine = create_engine(URL.create("sqlite", database=str(path)), connect_args={"timeout": BUSY_TIMEOUT_S})
    event.listen(engine, "connect", _configure)
    event.listen(engine, "begin", _begin)
    return engine


def upsert(table: Table) -> Insert:
    """An INSERT with `on_conflict_do_nothing` and `on_conflict_do_update`, which generic SQL does not have."""
    return insert(table)


@contextmanager
def typed_database_errors() -> Iterator[None]:
    """Turns the database errors that an operator can mend into typed errors; mistakes of this code pass.

    Raises:
        StorageFull: the disk is full.
        StoreCorrupt: the file is damaged, or no database.
        StorageUnavailable: it cannot be opened, read, written or locked.
    """
    try:
        yield
    except DBAPIError as error:
        # The low byte is the kind of error; the other bytes say where the error happened.
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise StorageFull("the disk has no room for this") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise StoreCorrupt("the store's database is damaged") from error
        if reason := _UNAVAILABLE.get(code):
            raise StorageUnavailable(f"the store's database does not work: {reason}") from error
        raise


def _configure(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    # SQLAlchemy's `begin` event begins, and not the driver, which would do so only before a write.
    connection.isolation_level = None
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")


def _begin(connection: Connection) -> None:
    # A transaction that reads first and then writes is refused by SQLite, without waiting, once another has written
    # in between. One that announces its write waits for its turn.
    writes = connection.get_execution_options().get("onebert_writes")
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def schema_mark(connection: Connection) -> int:
    """The number that marks the file's schema: 0 of an empty file."""
    return int(connection.exec_driver_sql("PRAGMA user_version").scalar_one())


def set_schema_mark(connection: Connection, number: int) -> None:
    """Marks the file, so that a OneBERT from before Alembic refuses a newer schema, too."""
    connection.exec_driver_sql(f"PRAGMA user_version = {number:d}")


def integrity_errors(connection: Connection) -> list[str]:
    """What the database itself finds wrong with its pages and references; nothing where all is well."""
    pages = [str(line) for line in connection.exec_driver_sql("PRAGMA quick_check").scalars() if line != "ok"]
    references = connection.exec_driver_sql("PRAGMA foreign_key_check").all()
    return pages + [f"a row of {row[0]} refers to a row of {row[2]} that is not there" for row in references]
