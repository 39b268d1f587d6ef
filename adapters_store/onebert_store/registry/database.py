"""The registry's tables."""

from datetime import UTC, datetime
from importlib import import_module
from typing import TYPE_CHECKING

import sqlalchemy as sa
from sqlalchemy import Connection, DateTime, Dialect, MetaData, Table, TypeDecorator

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


# Tables, and columns that came later than their table, have the schema that brought them in `info`.
TABLES = MetaData()

# Ordered by bytes, as in Python and SQLite; a language's collation would ignore dots and dashes.
NAME = sa.String().with_variant(sa.String(collation="C"), "postgresql")

# The row outlives the task's versions: `last_version` only grows, so a number is never used twice.
TASKS = Table(
    "tasks",
    TABLES,
    sa.Column("name", NAME, primary_key=True),
    sa.Column("last_version", sa.Integer, nullable=False),
    info={"since": 1},
)

# One immutable version; its content is the blob with this digest.
VERSIONS = Table(
    "versions",
    TABLES,
    sa.Column("task", NAME, sa.ForeignKey("tasks.name"), primary_key=True),
    sa.Column("version", sa.Integer, primary_key=True),
    sa.Column("digest", NAME, nullable=False, index=True),
    sa.Column("size", sa.Integer, nullable=False),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("manifest", sa.Text, nullable=False),
    sa.UniqueConstraint("task", "digest"),
    info={"since": 1},
)

# The foreign key protects `version`; `delete_version` protects the others of `target`. Earlier versions may be deleted.
# `target` is null where it is one version alone, `earlier` where no other was live before, `payer` where no rate bounds
# the work of the shadows.
ALIASES = Table(
    "aliases",
    TABLES,
    sa.Column("task", NAME, primary_key=True),
    sa.Column("alias", NAME, primary_key=True),
    sa.Column("version", sa.Integer, nullable=False),
    sa.Column("target", sa.Text, info={"since": 7}),
    sa.Column("payer", sa.Text, info={"since": 12}),
    sa.Column("earlier", sa.Text, info={"since": 13}),
    sa.ForeignKeyConstraint(["task", "version"], ["versions.task", "versions.version"]),
    info={"since": 1},
)

# Blobs that no version names, and the time they were first seen; a sweep removes them after a grace period.
ORPHANS = Table(
    "orphans",
    TABLES,
    sa.Column("digest", NAME, primary_key=True),
    sa.Column("since", UtcDateTime, nullable=False),
    info={"since": 2},
)


# The feed and audit trail, in the order of the commits; rows are only added.
CHANGES = Table(
    "changes",
    TABLES,
    sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
    sa.Column("at", UtcDateTime, nullable=False),
    sa.Column("action", sa.String, nullable=False),
    sa.Column("task", NAME),
    sa.Column("version", sa.Integer),
    sa.Column("alias", NAME),
    sa.Column("before", sa.Integer),
    sa.Column("principal", sa.String, nullable=False),
    sa.Column("request", sa.String, nullable=False),
    sa.Column("key", sa.String, info={"since": 4}),
    sa.Column("name", NAME, info={"since": 6}),
    sa.Column("target", sa.Text, info={"since": 7}),
    sa.Column("before_target", sa.Text, info={"since": 13}),
    sa.Column("message", sa.Text, info={"since": 14}),
    sa.Column("failed", sa.Text, info={"since": 15}),
    sa.Index("ix_changes_name", "name", "seq"),
    sa.Index("ix_changes_principal", "principal", "seq"),
    sa.Index("ix_changes_task", "task", "seq"),
    info={"since": 3},
)

# Keys by their SHA-256; rows are added and revoked, never removed. Lists are words separated by spaces.
KEYS = Table(
    "keys",
    TABLES,
    sa.Column("id", sa.String, primary_key=True),
    sa.Column("name", sa.String, nullable=False),
    sa.Column("digest", sa.String, nullable=False, unique=True),
    sa.Column("scopes", sa.String, nullable=False),
    sa.Column("tasks", sa.Text, nullable=False),
    sa.Column("default_task", sa.String),
    sa.Column("most_tasks", sa.BigInteger),
    sa.Column("most_bytes", sa.BigInteger),
    sa.Column("most_requests", sa.Double),
    sa.Column("most_tokens", sa.Double),
    sa.Column("created_at", UtcDateTime, nullable=False),
    sa.Column("expires_at", UtcDateTime),
    sa.Column("revoked_at", UtcDateTime),
    info={"since": 4},
)

# Per task and principal: how many existing versions the principal has uploaded, and their bytes, for quotas. Counting a
# hundred thousand from the trail instead takes a second, while all other changes wait for the commit.
HOLDINGS = Table(
    "holdings",
    TABLES,
    sa.Column("task", NAME, primary_key=True),
    sa.Column("principal", sa.String, primary_key=True),
    sa.Column("versions", sa.Integer, nullable=False),
    sa.Column("bytes", sa.BigInteger, nullable=False),
    sa.Index("ix_holdings_principal", "principal"),
    info={"since": 5},
)

# JSON that an extension keeps of a task, under the extension's name; it is deleted with the task. That of a version has
# `@` and its number behind the name, and is deleted with the version.
DOCUMENTS = Table(
    "documents",
    TABLES,
    sa.Column("task", NAME, primary_key=True),
    sa.Column("name", NAME, primary_key=True),
    sa.Column("content", sa.Text, nullable=False),
    info={"since": 11},
)

# Names a task for good: a new task with the name of a deleted one gets another id. `unkept_at`: when its keeping ended
# last.
IDENTITIES = Table(
    "identities",
    TABLES,
    sa.Column("task", NAME, primary_key=True),
    sa.Column("id", NAME, nullable=False, unique=True),
    sa.Column("unkept_at", UtcDateTime, info={"since": 10}),
    info={"since": 9},
)

# Ids of deleted tasks. An id that is neither here nor in `identities` belongs to a newer state of the registry.
DELETED_TASKS = Table(
    "deleted_tasks",
    TABLES,
    sa.Column("id", NAME, primary_key=True),
    info={"since": 10},
)

# How much of a task's answers is kept; a task without a row keeps none. The row is deleted when keeping ends, and the
# next one has another `id`.
KEEPINGS = Table(
    "keepings",
    TABLES,
    sa.Column("task", NAME, primary_key=True),
    sa.Column("share", sa.Double, nullable=False),
    sa.Column("days", sa.Integer, nullable=False),
    sa.Column("most", sa.Integer, nullable=False),
    sa.Column("id", NAME, info={"since": 9}),
    info={"since": 8},
)

# How far a reader outside has got in the feed, who reads for it now, and until when, as `replicas.at`.
CURSORS = Table(
    "cursors",
    TABLES,
    sa.Column("name", NAME, primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("holder", sa.String, nullable=False),
    sa.Column("until", sa.Double, nullable=False),
    info={"since": 8},
)

# One row with the number of the latest change; a transaction that makes a change holds it until its commit.
FEED = Table("feed", TABLES, sa.Column("last", sa.BigInteger, nullable=False), info={"since": 3})

# Servers that follow the feed: their latest change, and when they reported it, in seconds of the database's clock.
REPLICAS = Table(
    "replicas",
    TABLES,
    sa.Column("id", NAME, primary_key=True),
    sa.Column("seq", sa.BigInteger, nullable=False),
    sa.Column("at", sa.Double, nullable=False),
    info={"since": 3},
)


def upsert(connection: Connection, table: Table) -> "Insert":
    """Returns an INSERT with `on_conflict_do_nothing` and `on_conflict_do_update`, which generic SQL lacks."""
    # SQLite copied the clause from PostgreSQL; SQLAlchemy has an `Insert` class for each, with the same methods.
    statement: Insert = import_module(f"sqlalchemy.dialects.{connection.dialect.name}").insert(table)
    return statement
