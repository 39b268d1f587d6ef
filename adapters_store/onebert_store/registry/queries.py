"""The registry's queries: each runs inside its caller's transaction and never changes a row."""

from contextlib import suppress
from typing import Any

from pydantic import ValidationError
from sqlalchemy import ColumnElement, Connection, Row, or_, select

from onebert_store.errors import AliasConflict, StoreCorrupt, VersionNotFound
from onebert_store.file.manifest import Manifest
from onebert_store.file.strict_json import printable
from onebert_store.registry.database import ALIASES, DOCUMENTS, TASKS, VERSIONS
from onebert_store.registry.names import check_name, no_such_task
from onebert_store.registry.records import Alias, TaskRecord, VersionEntry, VersionRecord, alias_of
from onebert_store.registry.target import Precondition

MAX_VERSION = 2**31 - 1

# Manifests are the bulk of the table, and the only column whose content can be invalid.
ENTRY_COLUMNS = [column for column in VERSIONS.columns if column.name != "manifest"]


def version_entries(connection: Connection, *where: ColumnElement[bool]) -> list[VersionEntry]:
    """Lists the versions that `where` selects, by task and number."""
    rows = connection.execute(select(*ENTRY_COLUMNS).where(*where).order_by(VERSIONS.c.task, VERSIONS.c.version))
    entries, name = [], ""
    for task, *rest in rows:
        # Versions of one task share one string object.
        name = name if task == name else task
        entries.append(VersionEntry(name, *rest))
    return entries


def task_records(connection: Connection, where: ColumnElement[bool]) -> list[TaskRecord]:
    """Lists the tasks with versions that `where` selects, by name; always three queries."""
    chosen = select(TASKS.c.name).where(where, TASKS.c.name.in_(select(VERSIONS.c.task)))
    names = connection.scalars(chosen.order_by(TASKS.c.name)).all()
    versions: dict[str, list[int]] = {name: [] for name in names}
    aliases: dict[str, dict[str, Alias]] = {name: {} for name in names}
    for task, n in connection.execute(
        select(VERSIONS.c.task, VERSIONS.c.version).where(VERSIONS.c.task.in_(chosen)).order_by(VERSIONS.c.version)
    ):
        versions[task].append(n)
    for row in connection.execute(select(ALIASES).where(ALIASES.c.task.in_(chosen)).order_by(ALIASES.c.alias)):
        aliases[row.task][row.alias] = alias_of(*row[2:])
    return [TaskRecord(name, tuple(versions[name]), aliases[name]) for name in names]


def version_record(connection: Connection, task: str, n: int) -> VersionRecord:
    """Reads one version; raises StoreCorrupt if its manifest is damaged."""
    require_version(connection, task, n)
    row = connection.execute(select(VERSIONS).where(VERSIONS.c.task == task, VERSIONS.c.version == n)).one()
    if isinstance(entry := entry_of(row), VersionRecord):
        return entry
    raise StoreCorrupt(f"the database holds a damaged manifest of {task}@{n}")


def entry_of(row: Row[tuple[Any, ...]]) -> VersionEntry:
    """The version of a row with all columns; a VersionRecord unless its manifest is damaged."""
    entry = VersionEntry(row.task, row.version, row.digest, row.size, row.created_at)
    with suppress(ValidationError):
        return entry.with_manifest(Manifest.model_validate_json(row.manifest))
    return entry


def require_version(connection: Connection, task: str, n: int) -> None:
    """Raises TaskNotFound or VersionNotFound if the version does not exist; does not read its manifest."""
    require_task(connection, task)
    # The database rejects wider integers with an error of its own.
    if not 0 < n <= MAX_VERSION or not _exists(connection, VERSIONS.c.task == task, VERSIONS.c.version == n):
        raise VersionNotFound(f"{task} has no version {printable(str(n), 12)}")


def require_task(connection: Connection, name: str) -> None:
    """Raises InvalidInput if the name breaks the rule, and TaskNotFound if the task has no versions."""
    check_name(name)
    if not _exists(connection, VERSIONS.c.task == name):
        raise no_such_task(name)


def aliases_of(connection: Connection, task: str, *where: ColumnElement[bool]) -> dict[str, Alias]:
    """Reads the aliases of a task that `where` selects, by name."""
    rows = connection.execute(select(ALIASES).where(ALIASES.c.task == task, *where).order_by(ALIASES.c.alias))
    return {alias: alias_of(*columns) for _, alias, *columns in rows}


def aliases_at(connection: Connection, task: str, n: int) -> list[str]:
    """Lists the aliases that need a version."""
    needs = or_(ALIASES.c.version == n, ALIASES.c.target.is_not(None))
    return [name for name, at in aliases_of(connection, task, needs).items() if n in at.target.numbers]


def alias_named(connection: Connection, task: str, alias: str) -> Alias | None:
    """Returns an alias; None if there is no such alias."""
    return aliases_of(connection, task, ALIASES.c.alias == alias).get(alias)


def holds(connection: Connection, task: str, read: Precondition) -> bool:
    """Whether a document and aliases of a task are as they were; after `Feed.write` they stay so until the commit."""
    document = DOCUMENTS.c.task == task, DOCUMENTS.c.name == read.name
    if connection.scalar(select(DOCUMENTS.c.content).where(*document)) != read.content:
        return False
    at = aliases_of(connection, task, ALIASES.c.alias.in_(read.tags))
    return {name: at[name].target.tag if name in at else None for name in read.tags} == read.tags


def alias_conflict(connection: Connection, task: str, alias: str) -> AliasConflict:
    """Makes the error for an alias that is not where the caller expected; names its version now."""
    existing = alias_named(connection, task, alias)
    where = f"at version {existing.target.tag}" if existing else "not set"
    return AliasConflict(f"the alias {alias} of {task} is {where}")


def _exists(connection: Connection, *where: ColumnElement[bool]) -> bool:
    return connection.scalar(select(VERSIONS.c.version).where(*where).limit(1)) is not None
