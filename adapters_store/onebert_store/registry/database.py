"""The registry's tables, and the transactions that read and change them."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime

from sqlalchemy import (
    Column,
    Connection,
    DateTime,
    Dialect,
    Engine,
    ForeignKey,
    ForeignKeyConstraint,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

from onebert_store.registry.dialects import WRITES, typed_database_errors


class UtcDateTime(TypeDecorator[datetime]):
    """A time in UTC: stored without a zone, which SQLite would drop, and given back with it."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The time in UTC without its zone, for the database."""
        return value and value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """The same time, with its zone."""
        return value and value.replace(tzinfo=UTC)


TABLES = MetaData()

# The row of a task stays when its versions are gone: `last_version` only grows, so a number is never used twice.
TASKS = Table(
    "tasks",
    TABLES,
    Column("name", String, primary_key=True),
    Column("last_version", Integer, nullable=False),
)

# One immutable version; its bytes are the blob of that digest.
VERSIONS = Table(
    "versions",
    TABLES,
    Column("task", String, ForeignKey("tasks.name"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("digest", String, nullable=False, index=True),
    Column("size", Integer, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("manifest", Text, nullable=False),
    UniqueConstraint("task", "digest"),
)

# A movable pointer; the foreign key keeps the version that it points at, but not the one that it pointed at before.
ALIASES = Table(
    "aliases",
    TABLES,
    Column("task", String, primary_key=True),
    Column("alias", String, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("previous", Integer),
    ForeignKeyConstraint(["task", "version"], ["versions.task", "versions.version"]),
)

# Blobs that no version names, and since when that is known; a sweep removes the blob after a time of grace.
ORPHANS = Table(
    "orphans",
    TABLES,
    Column("digest", String, primary_key=True),
    Column("since", UtcDateTime, nullable=False),
)


@contextmanager
def reading(engine: Engine) -> Iterator[Connection]:
    """A transaction that sees one state of all tables."""
    with typed_database_errors(), engine.begin() as connection:
        yield connection


@contextmanager
def writing(engine: Engine) -> Iterator[Connection]:
    """A transaction that changes rows, durable when the block ends without an error.

    Several writers, threads or processes, are right by the statements alone: each statement changes the rows it finds,
    and the code decides by how many rows changed. No transaction reads first and writes what it computed from that.
    """
    with typed_database_errors(), engine.execution_options(**WRITES).begin() as connection:
        yield connection
