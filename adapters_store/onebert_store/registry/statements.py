"""What the registry changes: the statements of its transactions, which decide by the rows that they changed.

They are written for READ COMMITTED: each statement sees what was committed before it. Rows are held in one order (task,
orphans by digest, versions, aliases, holdings, the feed's counter), so that no two transactions wait for each other.
"""

from datetime import UTC, datetime

from sqlalchemy import ColumnElement, Connection, case, delete, exists, func, insert, literal, or_, select, update

from onebert_store.errors import InvalidInput, OverQuota, TaskExists
from onebert_store.file.canonical import manifest_json
from onebert_store.file.delta import Delta
from onebert_store.registry.database import ALIASES, CHANGES, HOLDINGS, ORPHANS, TASKS, VERSIONS, upsert
from onebert_store.registry.grants import Quotas
from onebert_store.registry.names import LIVE
from onebert_store.registry.queries import MAX_VERSION, require_task
from onebert_store.registry.records import Action, Alias, VersionRecord

# Above the number of every change.
MAX_SEQ = 2**63 - 1
# Aliases of one task.
MAX_ALIASES = 1000


def add_version(connection: Connection, task: str, delta: Delta, size: int) -> tuple[VersionRecord, bool, bool]:
    """Adds a version unless the task has this content; gives it, whether it is new, and whether it became `live`.

    The first of a task does.
    """
    connection.execute(upsert(connection, TASKS).values(name=task, last_version=0).on_conflict_do_nothing())
    _hold(connection, task)
    connection.execute(delete(ORPHANS).where(ORPHANS.c.digest == delta.digest))
    manifest = manifest_json(delta.manifest)
    same = (VERSIONS.c.task == task, VERSIONS.c.digest == delta.digest)
    healed = update(VERSIONS).where(*same).values(manifest=manifest, size=size)
    known = connection.execute(healed.returning(VERSIONS.c.version, VERSIONS.c.created_at)).first()
    is_live = False
    n, created_at = known or (_next_number(connection, task), datetime.now(UTC))
    if not known:
        row = {"task": task, "version": n, "digest": delta.digest, "size": size, "created_at": created_at}
        connection.execute(insert(VERSIONS).values(**row, manifest=manifest))
        others = exists().where(VERSIONS.c.task == task, VERSIONS.c.version != n)
        first = select(literal(task), literal(LIVE), literal(n)).where(~others)
        live = upsert(connection, ALIASES).from_select(["task", "alias", "version"], first)
        made = live.on_conflict_do_nothing().returning(ALIASES.c.version)
        is_live = connection.execute(made).first() is not None
    return VersionRecord(task, n, delta.digest, size, created_at, delta.manifest), known is None, is_live


def count_upload(connection: Connection, task: str, principal: str, size: int) -> None:
    """Counts a version that was added as one that a principal has uploaded."""
    first = upsert(connection, HOLDINGS).values(task=task, principal=principal, versions=1, bytes=size)
    more = {"versions": HOLDINGS.c.versions + 1, "bytes": HOLDINGS.c.bytes + size}
    connection.execute(first.on_conflict_do_update(index_elements=["task", "principal"], set_=more))


def check_quotas(connection: Connection, principal: str, most: Quotas, task: str | None = None, size: int = 0) -> None:
    """Refuses what a principal holds beyond its quotas: of what it has uploaded, the versions that are there.

    In a transaction that uploads it is called after the change was written: from there on one upload goes on at a
    time, whichever process it is in, and sees what those before it have committed.

    Args:
        connection: of the transaction.
        principal: who uploads.
        most: its quotas.
        task: of a version that it would have besides.
        size: of that version, in bytes.

    Raises:
        OverQuota: it has more tasks or bytes than it may, or would have.
    """
    if not most.of_storage:
        return
    counted = select(func.count(), func.coalesce(func.sum(HOLDINGS.c.bytes), 0))
    tasks, stored = map(int, connection.execute(counted.where(HOLDINGS.c.principal == principal)).one())
    if task is not None:
        tasks += connection.execute(select(HOLDINGS).where(*_holding(task, principal))).first() is None
    for has, may, what in ((tasks, most.tasks, "tasks"), (stored + size, most.bytes, "bytes")):
        if may is not None and has > may:
            raise OverQuota(f"this caller may have {may} {what} stored, and would have {has}")


def move_alias(connection: Connection, task: str, alias: str, version: int, expected: int | None) -> Alias | None:
    """Moves an alias that points at `expected`; gives the alias as it is then, or None where it points elsewhere.

    Raises:
        IntegrityError: there is no such version.
    """
    version = _storable(version)
    if expected is None:
        made = upsert(connection, ALIASES).values(task=task, alias=alias, version=version).on_conflict_do_nothing()
        return Alias(version) if connection.execute(made.returning(ALIASES.c.version)).first() else None
    before = case((ALIASES.c.version == version, ALIASES.c.previous), else_=ALIASES.c.version)
    moved = update(ALIASES).where(*_at(task, alias, expected)).values(version=version, previous=before)
    row = connection.execute(moved.returning(ALIASES.c.version, ALIASES.c.previous)).first()
    return Alias(row.version, row.previous) if row else None


def check_aliases(connection: Connection, task: str) -> None:
    """Refuses one alias of a task too many: replicas hold all of them in memory, and no quota counts them.

    To be called when the change has been written, which one transaction after the other does.

    Raises:
        InvalidInput: the task has more aliases than a task may.
    """
    count = select(func.count()).select_from(ALIASES).where(ALIASES.c.task == task)
    if connection.execute(count).scalar_one() > MAX_ALIASES:
        raise InvalidInput(f"a task has at most {MAX_ALIASES} aliases; delete one that nobody uses")


def delete_version(connection: Connection, task: str, n: int) -> bool:
    """Deletes a version, marks its blob where no other version has it, and says whether there was such a version.

    Raises:
        IntegrityError: an alias points at it.
    """
    _hold(connection, task)
    this = (VERSIONS.c.task == task, VERSIONS.c.version == _storable(n))
    _mark_orphans(connection, *this)
    size = connection.execute(delete(VERSIONS).where(*this).returning(VERSIONS.c.size)).scalar()
    if size is None:
        return False
    _discount_upload(connection, task, n, size)
    return True


def delete_alias(connection: Connection, task: str, alias: str, expected: int) -> bool:
    """Deletes an alias that points at `expected`, and says whether it did."""
    return bool(connection.execute(delete(ALIASES).where(*_at(task, alias, expected))).rowcount)


def delete_task(connection: Connection, task: str) -> None:
    """Deletes the aliases and versions that a task has now, by as many statements whatever their number is.

    Raises:
        TaskNotFound: the task has no versions.
        IntegrityError: somebody has pointed an alias at one of them since.
    """
    _hold(connection, task)
    # Only now: until its row is held another process may rename the task.
    require_task(connection, task)
    _mark_orphans(connection, VERSIONS.c.task == task)
    for table in (ALIASES, VERSIONS, HOLDINGS):
        connection.execute(delete(table).where(table.c.task == task))


def rename_task(connection: Connection, task: str, name: str) -> None:
    """Gives the versions and aliases of a task another name; their numbers stay, and are never used again under either.

    Raises:
        TaskNotFound: the task has no versions.
        TaskExists: the name had versions, and is not the one that the task had before.
        IntegrityError: somebody has pointed an alias at one of the versions since.
    """
    connection.execute(upsert(connection, TASKS).values(name=name, last_version=0).on_conflict_do_nothing())
    for each in sorted((task, name)):
        _hold(connection, each)
    require_task(connection, task)
    last = select(TASKS.c.last_version).where(TASKS.c.name == task).scalar_subquery()
    if connection.scalar(select(TASKS.c.last_version).where(TASKS.c.name == name)) and not _had(connection, name, task):
        raise TaskExists(f"there are versions of {name}, or were; a task takes a name that none has had")
    raised = case((TASKS.c.last_version < last, last), else_=TASKS.c.last_version)
    connection.execute(update(TASKS).where(TASKS.c.name == name).values(last_version=raised))
    columns = [column.name for column in VERSIONS.columns]
    theirs = [literal(name) if column == "task" else VERSIONS.c[column] for column in columns]
    # Aliases point at a version at every moment: from those of the old name to these.
    connection.execute(insert(VERSIONS).from_select(columns, select(*theirs).where(VERSIONS.c.task == task)))
    connection.execute(update(ALIASES).where(ALIASES.c.task == task).values(task=name))
    connection.execute(delete(VERSIONS).where(VERSIONS.c.task == task))
    connection.execute(update(HOLDINGS).where(HOLDINGS.c.task == task).values(task=name))


def _had(connection: Connection, name: str, task: str) -> bool:
    """Whether the last that happened to a name was that its task took the name that the task has now.

    Then its numbers mean what they meant, and the task may have the name back.
    """
    about = or_(CHANGES.c.task == name, CHANGES.c.name == name)
    found = select(CHANGES.c.task, CHANGES.c.name).where(about).order_by(CHANGES.c.seq.desc()).limit(1)
    row = connection.execute(found).first()
    return row is not None and tuple(row) == (name, task)


def _mark_orphans(connection: Connection, *where: ColumnElement[bool]) -> None:
    """Marks the blobs of versions that are about to be deleted, except those that other versions have."""
    other = VERSIONS.alias()
    others = exists().where(other.c.digest == VERSIONS.c.digest, other.c.task != VERSIONS.c.task)
    now = datetime.now(UTC)
    # In the order of the digests, in which everybody marks orphans: no two wait for each other.
    found = select(VERSIONS.c.digest, literal(now, ORPHANS.c.since.type)).where(*where, ~others)
    marked = upsert(connection, ORPHANS).from_select(["digest", "since"], found.order_by(VERSIONS.c.digest))
    connection.execute(marked.on_conflict_do_update(index_elements=["digest"], set_={"since": now}))


def _discount_upload(connection: Connection, task: str, n: int, size: int) -> None:
    """Counts a deleted version no more; nobody was counted for one of before there was a trail."""
    principal = _uploader(connection, task, n)
    if principal is None:
        return
    less = {"versions": HOLDINGS.c.versions - 1, "bytes": HOLDINGS.c.bytes - size}
    left = update(HOLDINGS).where(*_holding(task, principal)).values(less).returning(HOLDINGS.c.versions)
    if not connection.scalar(left):
        connection.execute(delete(HOLDINGS).where(*_holding(task, principal)))


def _uploader(connection: Connection, task: str, n: int) -> str | None:
    """Who uploaded a version, under whichever name its task had then; None where the trail does not say."""
    name, before = task, MAX_SEQ
    while True:
        uploads = (CHANGES.c.task == name, CHANGES.c.version == n, CHANGES.c.action == Action.UPLOAD)
        principal: str | None = connection.scalar(select(CHANGES.c.principal).where(*uploads))
        if principal is not None:
            return principal
        renamed = select(CHANGES.c.task, CHANGES.c.seq).where(CHANGES.c.name == name, CHANGES.c.seq < before)
        row = connection.execute(renamed.order_by(CHANGES.c.seq.desc()).limit(1)).first()
        if row is None:
            return None
        name, before = row


def _holding(task: str, principal: str) -> tuple[ColumnElement[bool], ...]:
    return HOLDINGS.c.task == task, HOLDINGS.c.principal == principal


def _hold(connection: Connection, task: str) -> None:
    """Of several transactions that add to a task or delete of it, one goes on at a time, until it ends."""
    connection.execute(select(TASKS.c.name).where(TASKS.c.name == task).with_for_update(key_share=True))


def _next_number(connection: Connection, task: str) -> int:
    counted = update(TASKS).where(TASKS.c.name == task).values(last_version=TASKS.c.last_version + 1)
    n: int = connection.execute(counted.returning(TASKS.c.last_version)).scalar_one()
    return n


def _at(task: str, alias: str, version: int) -> tuple[ColumnElement[bool], ...]:
    return ALIASES.c.task == task, ALIASES.c.alias == alias, ALIASES.c.version == _storable(version)


def _storable(n: int) -> int:
    # The database refuses wider integers with an error of its own; no version has the number 0.
    return n if 0 < n <= MAX_VERSION else 0
