"""The registry's tables, and the transactions that read and change them."""

from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from importlib import import_module
from math import inf
from typing import TYPE_CHECKING

from sqlalchemy import (
    BigInteger,
    Column,
    Connection,
    DateTime,
    Dialect,
    Double,
    ForeignKey,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    TypeDecorator,
    UniqueConstraint,
)

from onebert_store.registry.dialects.protocol import Database

if TYPE_CHECKING:
    from sqlalchemy.dialects.postgresql import Insert


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

# Names are ordered by their bytes, as in Python and in SQLite; a language's rules would skip dots and dashes.
NAME = String().with_variant(String(collation="C"), "postgresql")

# The row of a task stays when its versions are gone: `last_version` only grows, so a number is never used twice.
TASKS = Table(
    "tasks",
    TABLES,
    Column("name", NAME, primary_key=True),
    Column("last_version", Integer, nullable=False),
)

# One immutable version; its bytes are the blob of that digest.
VERSIONS = Table(
    "versions",
    TABLES,
    Column("task", NAME, ForeignKey("tasks.name"), primary_key=True),
    Column("version", Integer, primary_key=True),
    Column("digest", NAME, nullable=False, index=True),
    Column("size", Integer, nullable=False),
    Column("created_at", UtcDateTime, nullable=False),
    Column("manifest", Text, nullable=False),
    UniqueConstraint("task", "digest"),
)

# A movable pointer; the foreign key keeps the version that it points at, but not the one that it pointed at before.
ALIASES = Table(
    "aliases",
    TABLES,
    Column("task", NAME, primary_key=True),
    Column("alias", NAME, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("previous", Integer),
    ForeignKeyConstraint(["task", "version"], ["versions.task", "versions.version"]),
)

# Blobs that no version names, and since when that is known; a sweep removes the blob after a time of grace.
ORPHANS = Table(
    "orphans",
    TABLES,
    Column("digest", NAME, primary_key=True),
    Column("since", UtcDateTime, nullable=False),
)


# What was changed, in the order in which it was: what replicas follow, and the audit trail; rows are only ever added.
CHANGES = Table(
    "changes",
    TABLES,
    Column("seq", BigInteger, primary_key=True, autoincrement=False),
    Column("at", UtcDateTime, nullable=False),
    Column("action", String, nullable=False),
    Column("task", NAME),
    Column("version", Integer),
    Column("alias", NAME),
    Column("before", Integer),
    Column("principal", String, nullable=False),
    Column("request", String, nullable=False),
    Column("key", String),
    Column("name", NAME),
    Index("ix_changes_name", "name", "seq"),
    Index("ix_changes_principal", "principal", "seq"),
    Index("ix_changes_task", "task", "seq"),
)

# Keys, by their SHA-256; rows are added and revoked, and never removed. Lists are words, separated by spaces.
KEYS = Table(
    "keys",
    TABLES,
    Column("id", String, primary_key=True),
    Column("name", String, nullable=False),
    Column("digest", String, nullable=False, unique=True),
    Column("scopes", String, nullable=False),
    Column("tasks", Text, nullable=False),
    Column("default_task", String),
    Column("most_tasks", BigInteger),
    Column("most_bytes", BigInteger),
    Column("most_requests", Double),
    Column("most_tokens", Double),
    Column("created_at", UtcDateTime, nullable=False),
    Column("expires_at", UtcDateTime),
    Column("revoked_at", UtcDateTime),
)

# Of the versions there are, how many of a task a principal has uploaded, and their bytes: what quotas are held against.
# The trail and the versions say it as well, but to count a hundred thousand of these, while all other changes wait for
# the upload's commit, takes a second.
HOLDINGS = Table(
    "holdings",
    TABLES,
    Column("task", NAME, primary_key=True),
    Column("principal", String, primary_key=True),
    Column("versions", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Index("ix_holdings_principal", "principal"),
)

# One row: the number of the last change. Whoever makes a change holds this row until the commit.
FEED = Table("feed", TABLES, Column("last", BigInteger, nullable=False))

# Servers that follow the changes: how far each one is, and when it said so, in seconds of the database's clock.
REPLICAS = Table(
    "replicas",
    TABLES,
    Column("id", NAME, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
)


@contextmanager
def reading(database: Database) -> Iterator[Connection]:
    """A transaction that sees one state of all tables."""
    with database.typed_errors(), database.readers.begin() as connection:
        yield connection


@contextmanager
def writing(database: Database, until: float = inf) -> Iterator[Connection]:
    """A transaction that changes rows, durable when the block ends without an error.

    Several writers, threads or processes, are right by the statements alone: each statement changes the rows it finds,
    and the code decides by how many rows changed. No transaction reads first and writes what it computed from that.

    Args:
        database: where the rows are.
        until: when it is given up, with StorageUnavailable, where others hold the database, in seconds of
            `time.monotonic()`; the database's own limit may come first.
    """
    with database.typed_errors(), database.writers.execution_options(onebert_until=until).begin() as connection:
        yield connection


def upsert(connection: Connection, table: Table) -> "Insert":
    """An INSERT with `on_conflict_do_nothing` and `on_conflict_do_update`, which generic SQL does not have."""
    # SQLite took the clause over from PostgreSQL, and SQLAlchemy has one `Insert` for each, with the same methods.
    made: Insert = import_module(f"sqlalchemy.dialects.{connection.dialect.name}").insert(table)
    return made
