"""The registry's tables, and the SQLite database that holds them."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

from sqlalchemy import (
    URL,
    DateTime,
    Dialect,
    Engine,
    ForeignKey,
    ForeignKeyConstraint,
    Text,
    TypeDecorator,
    UniqueConstraint,
    create_engine,
    event,
)
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column
from sqlalchemy.pool import ConnectionPoolEntry

from onebert_store.errors import StorageFull, StoreCorrupt

SCHEMA = 1


class UtcDateTime(TypeDecorator[datetime]):
    """SQLite drops time zones: UTC is stored and given back."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Naive UTC for the database."""
        return value and value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Aware UTC for us."""
        return value and value.replace(tzinfo=UTC)


class Rows(DeclarativeBase):
    """What the tables have in common."""


class TaskRow(Rows):
    """A task; the row stays when its versions are gone: `last_version` only grows, so a number is never used twice."""

    __tablename__ = "tasks"

    name: Mapped[str] = mapped_column(primary_key=True)
    last_version: Mapped[int]


class VersionRow(Rows):
    """One immutable version; its bytes are the blob of that digest."""

    __tablename__ = "versions"
    __table_args__ = (UniqueConstraint("task", "digest"),)

    task: Mapped[str] = mapped_column(ForeignKey("tasks.name"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    digest: Mapped[str] = mapped_column(index=True)
    size: Mapped[int]
    created_at: Mapped[datetime] = mapped_column(UtcDateTime)
    manifest: Mapped[str] = mapped_column(Text)


class AliasRow(Rows):
    """A movable pointer; the foreign key keeps the version it points at, but not the one it pointed at before."""

    __tablename__ = "aliases"
    __table_args__ = (ForeignKeyConstraint(["task", "version"], ["versions.task", "versions.version"]),)

    task: Mapped[str] = mapped_column(primary_key=True)
    alias: Mapped[str] = mapped_column(primary_key=True)
    version: Mapped[int]
    previous: Mapped[int | None]


def open_database(path: Path, may_create: bool = True) -> Engine:
    """Opens or creates the database; a commit survives a power cut.

    Raises:
        StoreCorrupt: the file is damaged or was written by a newer OneBERT; or it is missing or empty and may not be.
        StorageFull: there is no room to create it.
    """
    engine = create_engine(URL.create("sqlite", database=str(path)))
    event.listen(engine, "connect", _configure)
    # The driver would begin only before a write; reads of several tables need one snapshot.
    event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
    try:
        with typed_database_errors(), engine.begin() as connection:
            found = connection.exec_driver_sql("PRAGMA user_version").scalar_one()
            if found > SCHEMA:
                raise StoreCorrupt(f"the store has schema {found}; this OneBERT reads schema {SCHEMA}")
            if not found and not may_create:
                raise StoreCorrupt(
                    "the store has blobs but no database; put the registry.sqlite3 that goes with them back"
                )
            Rows.metadata.create_all(connection)
            connection.exec_driver_sql(f"PRAGMA user_version = {SCHEMA}")
    except BaseException:
        engine.dispose()
        raise
    return engine


@contextmanager
def typed_database_errors() -> Iterator[None]:
    """Turns SQLite's "full" and "not a database" into our errors; others pass."""
    try:
        yield
    except DBAPIError as error:
        # The low byte is the primary code; the rest says where it happened.
        code = getattr(error.orig, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            raise StorageFull("the disk has no room for this") from error
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            raise StoreCorrupt("the store's database is damaged") from error
        raise


def _configure(connection: sqlite3.Connection, _: ConnectionPoolEntry) -> None:
    connection.isolation_level = None
    for pragma in ("journal_mode = WAL", "synchronous = FULL", "foreign_keys = ON"):
        connection.execute(f"PRAGMA {pragma}")
