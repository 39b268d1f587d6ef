"""The registry's changing statements; each decides by the rows that it changed.

They are written for READ COMMITTED: each statement sees everything that was committed before it. Every transaction
locks rows in one order (task, orphans by digest, versions, aliases, holdings, documents, keepings, identities, deleted
tasks, the feed's counter), so that there are no deadlocks.
"""

import json
from collections.abc import Callable, Collection
from dataclasses import asdict
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

import sqlalchemy as sa

from onebert_store.errors import InvalidInput, OverQuota
from onebert_store.file.delta import Delta, manifest_json
from onebert_store.registry.database import (
    ALIASES,
    CHANGES,
    DELETED_TASKS,
    DOCUMENTS,
    HOLDINGS,
    IDENTITIES,
    KEEPINGS,
    ORPHANS,
    TASKS,
    VERSIONS,
    upsert,
)
from onebert_store.registry.keeping import Keeping
from onebert_store.registry.names import LIVE
from onebert_store.registry.queries import MAX_VERSION, require_task, require_version
from onebert_store.registry.records import Action, Actor, Alias, Payer, VersionRecord
from onebert_store.registry.target import Target, dump_targets

# Above the number of every change.
MAX_SEQ = 2**63 - 1
# Aliases per task.
MAX_ALIASES = 1000


def add_version(
    connection: sa.Connection, task: str, delta: Delta, size: int, live: bool
) -> tuple[VersionRecord, bool, bool]:
    """Adds a version unless the task has this content; returns it, whether it is new, and whether `live` was set.

    With `live` the first version of a task gets that alias.
    """
    connection.execute(upsert(connection, TASKS).values(name=task, last_version=0).on_conflict_do_nothing())
    _lock_task(connection, task)
    connection.execute(sa.delete(ORPHANS).where(ORPHANS.c.digest == delta.digest))
    manifest = manifest_json(delta.manifest)
    same = (VERSIONS.c.task == task, VERSIONS.c.digest == delta.digest)
    healed = sa.update(VERSIONS).where(*same).values(manifest=manifest, size=size)
    known = connection.execute(healed.returning(VERSIONS.c.version, VERSIONS.c.created_at)).first()
    is_live = False
    n, created_at = known or (_next_number(connection, task), datetime.now(UTC))
    if not known:
        row = {"task": task, "version": n, "digest": delta.digest, "size": size, "created_at": created_at}
        connection.execute(sa.insert(VERSIONS).values(**row, manifest=manifest))
        other_versions = sa.exists().where(VERSIONS.c.task == task, VERSIONS.c.version != n)
        first = sa.select(sa.literal(task), sa.literal(LIVE), sa.literal(n)).where(~other_versions)
        alias = upsert(connection, ALIASES).from_select(["task", "alias", "version"], first)
        created = alias.on_conflict_do_nothing().returning(ALIASES.c.version)
        is_live = live and connection.execute(created).first() is not None
        named = upsert(connection, IDENTITIES).values(task=task, id=uuid4().hex)
        connection.execute(named.on_conflict_do_nothing(index_elements=["task"]))
    return VersionRecord(task, n, delta.digest, size, created_at, delta.manifest), known is None, is_live


def count_upload(connection: sa.Connection, task: str, principal: str, size: int) -> None:
    """Adds a new version to the holdings of the principal that uploaded it."""
    first = upsert(connection, HOLDINGS).values(task=task, principal=principal, versions=1, bytes=size)
    added = {"versions": HOLDINGS.c.versions + 1, "bytes": HOLDINGS.c.bytes + size}
    connection.execute(first.on_conflict_do_update(index_elements=["task", "principal"], set_=added))


def check_quotas(connection: sa.Connection, by: Actor, task: str | None = None, size: int = 0) -> None:
    """Raises OverQuota if the versions that a principal uploaded and that still exist exceed its quotas.

    With `task` it counts one more version, of `size` bytes, that is not stored yet. An upload calls it after
    `Feed.write`: from there on uploads run one at a time, in whichever process, and each sees everything that earlier
    ones committed.
    """
    principal, quotas = by.principal, by.quotas
    if not quotas.of_storage:
        return
    counted = sa.select(sa.func.count(), sa.func.coalesce(sa.func.sum(HOLDINGS.c.bytes), 0))
    tasks, stored = map(int, connection.execute(counted.where(HOLDINGS.c.principal == principal)).one())
    if task is not None:
        tasks += connection.execute(sa.select(HOLDINGS).where(*_holding(task, principal))).first() is None
    for count, limit, unit in ((tasks, quotas.tasks, "tasks"), (stored + size, quotas.bytes, "bytes")):
        if limit is not None and count > limit:
            raise OverQuota(f"this caller may have {limit} {unit} stored, and would have {count}")


def lock_versions(connection: sa.Connection, task: str, numbers: Collection[int]) -> bool:
    """Keeps versions from being deleted until the commit; returns whether all are there."""
    wanted = VERSIONS.c.task == task, VERSIONS.c.version.in_([_storable(number) for number in numbers])
    rows = sa.select(VERSIONS.c.version).where(*wanted).order_by(VERSIONS.c.version)
    return len(connection.execute(rows.with_for_update(read=True, key_share=True)).all()) == len(numbers)


def move_alias(
    connection: sa.Connection, task: str, alias: str, target: Target, at: Alias | None, payer: Payer | None
) -> Alias | None:
    """Moves an alias if it is still `at` (None: missing), else returns None; call it after `lock_versions`."""
    row = {"version": target.version, "target": target.dumps(), "payer": payer and json.dumps(payer)}
    if at is None:
        created = upsert(connection, ALIASES).values(task=task, alias=alias, **row).on_conflict_do_nothing()
        new = Alias(target, payer=payer)
        return new if connection.execute(created.returning(ALIASES.c.version)).first() else None
    if target == at.target:
        return at
    moved = at.moved(target, payer)
    update = sa.update(ALIASES).where(*_at(task, alias, at.target))
    values = row | {"earlier": dump_targets(moved.earlier)}
    return moved if connection.execute(update.values(values)).rowcount else None


def check_aliases(connection: sa.Connection, task: str) -> None:
    """Raises InvalidInput if the task has more than MAX_ALIASES aliases. Call it after `Feed.write`."""
    count = sa.select(sa.func.count()).select_from(ALIASES).where(ALIASES.c.task == task)
    if connection.execute(count).scalar_one() > MAX_ALIASES:
        raise InvalidInput(f"a task has at most {MAX_ALIASES} aliases; delete one that nobody uses")


def delete_version(connection: sa.Connection, task: str, n: int) -> bool:
    """Deletes a version, if it exists, and marks its blob; raises IntegrityError if an alias points at it."""
    _lock_task(connection, task)
    selected = (VERSIONS.c.task == task, VERSIONS.c.version == _storable(n))
    _mark_orphans(connection, *selected)
    size = connection.execute(sa.delete(VERSIONS).where(*selected).returning(VERSIONS.c.size)).scalar()
    if size is None:
        return False
    _discount_upload(connection, task, n, size)
    documents = DOCUMENTS.c.task == task, DOCUMENTS.c.name.endswith(document_of("", n))
    connection.execute(sa.delete(DOCUMENTS).where(*documents))
    # Without versions there is no task: a later one of this name inherits no documents, keeping or id.
    remaining = sa.exists().where(VERSIONS.c.task == task)
    _delete_of_task(connection, (DOCUMENTS, KEEPINGS), task, ~remaining)
    return True


def delete_alias(connection: sa.Connection, task: str, alias: str, expected: Target) -> bool:
    """Deletes an alias that means `expected`; returns whether it did."""
    return bool(connection.execute(sa.delete(ALIASES).where(*_at(task, alias, expected))).rowcount)


def delete_task(connection: sa.Connection, task: str) -> None:
    """Deletes a task's aliases and versions; raises IntegrityError if an alias was pointed at one meanwhile."""
    _lock_task(connection, task)
    # Check only now: before its row is held, another process may delete the task.
    require_task(connection, task)
    _mark_orphans(connection, VERSIONS.c.task == task)
    _hold_every_version(connection, task)
    _delete_of_task(connection, (ALIASES, VERSIONS, HOLDINGS, DOCUMENTS, KEEPINGS), task)


def set_document(connection: sa.Connection, task: str, name: str, content: str) -> None:
    """Sets a document of a task in place of the one before."""
    _set_of_task(connection, DOCUMENTS, {"task": task, "name": name}, {"content": content})


def delete_document(connection: sa.Connection, task: str, name: str) -> bool:
    """Deletes a document of a task; returns whether there was one."""
    document = sa.delete(DOCUMENTS).where(DOCUMENTS.c.task == task, DOCUMENTS.c.name == name)
    return bool(connection.execute(document).rowcount)


def document_of(name: str, n: int) -> str:
    """The name under which a version's document is stored."""
    return f"{name}@{n}"


def update_document(
    connection: sa.Connection, task: str, n: int, name: str, change: Callable[[str | None], str | None]
) -> str | None:
    """Sets a version's document to what `change` makes of it, None to delete it; returns what it is now."""
    _lock_task(connection, task)
    require_version(connection, task, n)
    key = {"task": task, "name": document_of(name, n)}
    row = DOCUMENTS.c.task == task, DOCUMENTS.c.name == key["name"]
    before = connection.scalar(sa.select(DOCUMENTS.c.content).where(*row))
    content = change(before)
    if content is None:
        connection.execute(sa.delete(DOCUMENTS).where(*row))
    elif content != before:
        new = upsert(connection, DOCUMENTS).values(key | {"content": content})
        connection.execute(new.on_conflict_do_update(index_elements=[*key], set_={"content": content}))
    return content


def set_keeping(connection: sa.Connection, task: str, keeping: Keeping) -> None:
    """Sets how much of a task's answers is kept; the id is new if none was."""
    row = asdict(keeping)
    del row["id"]
    _set_of_task(connection, KEEPINGS, {"task": task}, row, id=uuid4().hex)


def delete_keeping(connection: sa.Connection, task: str) -> bool:
    """Ends the keeping of a task's answers; returns whether there was one."""
    if not connection.execute(sa.delete(KEEPINGS).where(KEEPINGS.c.task == task)).rowcount:
        return False
    ended = sa.update(IDENTITIES).where(IDENTITIES.c.task == task)
    connection.execute(ended.values(unkept_at=datetime.now(UTC)))
    return True


def _delete_of_task(
    connection: sa.Connection, tables: Collection[sa.Table], task: str, *where: sa.ColumnElement[bool]
) -> None:
    for table in tables:
        connection.execute(sa.delete(table).where(table.c.task == task, *where))
    id = sa.select(IDENTITIES.c.id).where(IDENTITIES.c.task == task, *where)
    connection.execute(sa.insert(DELETED_TASKS).from_select(["id"], id))
    connection.execute(sa.delete(IDENTITIES).where(IDENTITIES.c.task == task, *where))


def _set_of_task(
    connection: sa.Connection, table: sa.Table, key: dict[str, str], row: dict[str, Any], **first: str
) -> None:
    _lock_task(connection, key["task"])
    require_task(connection, key["task"])
    new = upsert(connection, table).values(key | row | first)
    connection.execute(new.on_conflict_do_update(index_elements=[*key], set_=row))


def _mark_orphans(connection: sa.Connection, *where: sa.ColumnElement[bool]) -> None:
    duplicates = VERSIONS.alias()
    same_blob = sa.exists().where(duplicates.c.digest == VERSIONS.c.digest, duplicates.c.task != VERSIONS.c.task)
    now = datetime.now(UTC)
    # Ordered by digest, as in every transaction that marks orphans, so that there are no deadlocks.
    orphans = sa.select(VERSIONS.c.digest, sa.literal(now, ORPHANS.c.since.type)).where(*where, ~same_blob)
    marked = upsert(connection, ORPHANS).from_select(["digest", "since"], orphans.order_by(VERSIONS.c.digest))
    connection.execute(marked.on_conflict_do_update(index_elements=["digest"], set_={"since": now}))


def _discount_upload(connection: sa.Connection, task: str, n: int, size: int) -> None:
    """Subtracts a deleted version; versions from before the audit trail were never counted."""
    principal = _uploader(connection, task, n)
    if principal is None:
        return
    less = {"versions": HOLDINGS.c.versions - 1, "bytes": HOLDINGS.c.bytes - size}
    remaining = sa.update(HOLDINGS).where(*_holding(task, principal)).values(less).returning(HOLDINGS.c.versions)
    if not connection.scalar(remaining):
        connection.execute(sa.delete(HOLDINGS).where(*_holding(task, principal)))


def _uploader(connection: sa.Connection, task: str, n: int) -> str | None:
    """Finds who uploaded a version, following the renames of earlier releases; None if the trail does not have it."""
    name, before = task, MAX_SEQ
    while True:
        uploads = (CHANGES.c.task == name, CHANGES.c.version == n, CHANGES.c.action == Action.UPLOAD)
        principal: str | None = connection.scalar(sa.select(CHANGES.c.principal).where(*uploads))
        if principal is not None:
            return principal
        renamed = sa.select(CHANGES.c.task, CHANGES.c.seq).where(CHANGES.c.name == name, CHANGES.c.seq < before)
        row = connection.execute(renamed.order_by(CHANGES.c.seq.desc()).limit(1)).first()
        if row is None:
            return None
        name, before = row


def _holding(task: str, principal: str) -> tuple[sa.ColumnElement[bool], ...]:
    return HOLDINGS.c.task == task, HOLDINGS.c.principal == principal


def _lock_task(connection: sa.Connection, task: str) -> None:
    """Locks the task's row: transactions that add to a task or delete from it run one at a time."""
    connection.execute(sa.select(TASKS.c.name).where(TASKS.c.name == task).with_for_update(key_share=True))


def _hold_every_version(connection: sa.Connection, task: str) -> None:
    """Locks a task's versions before its aliases, as a move of an alias does."""
    every = sa.select(VERSIONS.c.version).where(VERSIONS.c.task == task).order_by(VERSIONS.c.version)
    connection.execute(every.with_for_update())


def _next_number(connection: sa.Connection, task: str) -> int:
    counted = sa.update(TASKS).where(TASKS.c.name == task).values(last_version=TASKS.c.last_version + 1)
    n: int = connection.execute(counted.returning(TASKS.c.last_version)).scalar_one()
    return n


def _at(task: str, alias: str, target: Target) -> tuple[sa.ColumnElement[bool], ...]:
    text = target.dumps()
    means = ALIASES.c.target.is_not_distinct_from(text)
    if text is not None:
        # An older store may have appended `decide`: see `Target.loads`.
        means = sa.or_(means, ALIASES.c.target.startswith(text[:-1] + ",", autoescape=True))
    return ALIASES.c.task == task, ALIASES.c.alias == alias, ALIASES.c.version == target.version, means


def _storable(n: int) -> int:
    # The database rejects wider integers with an error of its own; no version has the number 0.
    return n if 0 < n <= MAX_VERSION else 0
