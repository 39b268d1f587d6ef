"""What the registry changes: the statements of its transactions, which decide by the rows that they changed."""

from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, case, delete, exists, insert, literal, select, update

from onebert_store.file.canonical import manifest_json
from onebert_store.file.delta import Delta
from onebert_store.registry.database import ALIASES, ORPHANS, TASKS, VERSIONS
from onebert_store.registry.dialects import upsert
from onebert_store.registry.names import LIVE
from onebert_store.registry.queries import MAX_VERSION
from onebert_store.registry.records import Alias, VersionRecord


def add_version(connection: Connection, task: str, delta: Delta, size: int) -> tuple[VersionRecord, bool]:
    """Adds a version unless the task has this content; gives it, and whether it is new. A first one becomes `live`."""
    # Holds the task's row until the transaction ends: of several transactions that add to one task, one goes on.
    kept = {"last_version": TASKS.c.last_version}
    connection.execute(upsert(TASKS).values(name=task, last_version=0).on_conflict_do_update(["name"], set_=kept))
    connection.execute(delete(ORPHANS).where(ORPHANS.c.digest == delta.digest))
    manifest = manifest_json(delta.manifest)
    same = (VERSIONS.c.task == task, VERSIONS.c.digest == delta.digest)
    healed = update(VERSIONS).where(*same).values(manifest=manifest, size=size)
    if known := connection.execute(healed.returning(VERSIONS.c.version, VERSIONS.c.created_at)).first():
        return VersionRecord(task, known.version, delta.digest, size, known.created_at, delta.manifest), False
    counted = update(TASKS).where(TASKS.c.name == task).values(last_version=TASKS.c.last_version + 1)
    n = connection.execute(counted.returning(TASKS.c.last_version)).scalar_one()
    record = VersionRecord(task, n, delta.digest, size, datetime.now(UTC), delta.manifest)
    row = {"task": task, "version": n, "digest": record.digest, "size": size, "created_at": record.created_at}
    connection.execute(insert(VERSIONS).values(**row, manifest=manifest))
    others = exists().where(VERSIONS.c.task == task, VERSIONS.c.version != n)
    first = select(literal(task), literal(LIVE), literal(n)).where(~others)
    connection.execute(upsert(ALIASES).from_select(["task", "alias", "version"], first).on_conflict_do_nothing())
    return record, True


def move_alias(connection: Connection, task: str, alias: str, version: int, expected: int | None) -> Alias | None:
    """Moves an alias that points at `expected`; gives the alias as it is then, or None where it points elsewhere.

    Raises:
        IntegrityError: there is no such version.
    """
    version = _storable(version)
    if expected is None:
        made = upsert(ALIASES).values(task=task, alias=alias, version=version).on_conflict_do_nothing()
        return Alias(version) if connection.execute(made).rowcount else None
    before = case((ALIASES.c.version == version, ALIASES.c.previous), else_=ALIASES.c.version)
    moved = update(ALIASES).where(*_at(task, alias, expected)).values(version=version, previous=before)
    row = connection.execute(moved.returning(ALIASES.c.version, ALIASES.c.previous)).first()
    return Alias(row.version, row.previous) if row else None


def delete_version(connection: Connection, task: str, n: int) -> bool:
    """Deletes a version, marks its blob where no other version has it, and says whether there was such a version.

    Raises:
        IntegrityError: an alias points at it.
    """
    gone = delete(VERSIONS).where(VERSIONS.c.task == task, VERSIONS.c.version == _storable(n))
    digest = connection.execute(gone.returning(VERSIONS.c.digest)).scalar()
    if digest is None:
        return False
    now = datetime.now(UTC)
    others = exists().where(VERSIONS.c.digest == digest)
    orphan = select(literal(digest), literal(now, ORPHANS.c.since.type)).where(~others)
    connection.execute(
        upsert(ORPHANS).from_select(["digest", "since"], orphan).on_conflict_do_update(["digest"], set_={"since": now})
    )
    return True


def delete_alias(connection: Connection, task: str, alias: str, expected: int) -> bool:
    """Deletes an alias that points at `expected`, and says whether it did."""
    return bool(connection.execute(delete(ALIASES).where(*_at(task, alias, expected))).rowcount)


def delete_task(connection: Connection, task: str) -> None:
    """Deletes the aliases and versions that a task has now."""
    connection.execute(delete(ALIASES).where(ALIASES.c.task == task))
    for n in connection.scalars(select(VERSIONS.c.version).where(VERSIONS.c.task == task)).all():
        delete_version(connection, task, n)


def _at(task: str, alias: str, version: int) -> tuple[ColumnElement[bool], ...]:
    return ALIASES.c.task == task, ALIASES.c.alias == alias, ALIASES.c.version == _storable(version)


def _storable(n: int) -> int:
    # The database refuses wider integers with an error of its own; no version has the number 0.
    return n if 0 < n <= MAX_VERSION else 0
