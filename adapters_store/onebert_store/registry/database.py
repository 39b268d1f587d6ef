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
    """A time in UTC, stored without a time zone, because SQLite would drop it."""

    impl = DateTime
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value and value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        return value and value.replace(tzinfo=UTC)


TABLES = MetaData()

# Ordered by bytes, as in Python and SQLite; a language's collation would ignore dots and dashes.
NAME = String().with_variant(String(collation="C"), "postgresql")

# The row outlives the task's versions: `last_version` only grows, so a number is never used twice.
TASKS = Table(
    "tasks",
    TABLES,
    Column("name", NAME, primary_key=True),
    Column("last_version", Integer, nullable=False),
)

# One immutable version; its content is the blob with this digest.
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

# The foreign key protects `version`; the version in `previous` may be deleted.
ALIASES = Table(
    "aliases",
    TABLES,
    Column("task", NAME, primary_key=True),
    Column("alias", NAME, primary_key=True),
    Column("version", Integer, nullable=False),
    Column("previous", Integer),
    ForeignKeyConstraint(["task", "version"], ["versions.task", "versions.version"]),
)

# Blobs that no version names, and the time they were first seen; a sweep removes them after a grace period.
ORPHANS = Table(
    "orphans",
    TABLES,
    Column("digest", NAME, primary_key=True),
    Column("since", UtcDateTime, nullable=False),
)


# The feed and audit trail, in the order of the commits; rows are only added.
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

# Keys by their SHA-256; rows are added and revoked, never removed. Lists are words separated by spaces.
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

# Per task and principal: how many existing versions the principal has uploaded, and their bytes, for quotas. Counting a
# hundred thousand from the trail instead takes a second, while all other changes wait for the commit.
HOLDINGS = Table(
    "holdings",
    TABLES,
    Column("task", NAME, primary_key=True),
    Column("principal", String, primary_key=True),
    Column("versions", Integer, nullable=False),
    Column("bytes", BigInteger, nullable=False),
    Index("ix_holdings_principal", "principal"),
)

# One row with the number of the latest change; a transaction that makes a change holds it until its commit.
FEED = Table("feed", TABLES, Column("last", BigInteger, nullable=False))

# Servers that follow the feed: their latest change, and when they reported it, in seconds of the database's clock.
REPLICAS = Table(
    "replicas",
    TABLES,
    Column("id", NAME, primary_key=True),
    Column("seq", BigInteger, nullable=False),
    Column("at", Double, nullable=False),
)


@contextmanager
def reading(database: Database) -> Iterator[Connection]:
    """Opens a transaction that sees one state of all tables."""
    with database.typed_errors(), database.readers.begin() as connection:
        yield connection


@contextmanager
def writing(database: Database, until: float = inf) -> Iterator[Connection]:
    """Opens a transaction that changes rows; durable when the block ends without an error.

    Concurrent writers, threads or processes, need no other lock: each statement changes the rows it finds, and the code
    decides by the number of changed rows. No transaction writes a value that it computed from an earlier read. A busy
    database raises StorageUnavailable at `until` (seconds of `time.monotonic()`) or at its own limit.
    """
    with database.typed_errors(), database.writers.execution_options(onebert_until=until).begin() as connection:
        yield connection


def upsert(connection: Connection, table: Table) -> "Insert":
    """Returns an INSERT with `on_conflict_do_nothing` and `on_conflict_do_update`, which generic SQL lacks."""
    # SQLite copied the clause from PostgreSQL; SQLAlchemy has an `Insert` class for each, with the same methods.
    made: Insert = import_module(f"sqlalchemy.dialects.{connection.dialect.name}").insert(table)
    return made
