"""Tasks, their immutable numbered versions and their movable aliases: rows in SQLite, bytes in a blob store."""

import fcntl
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import ColumnElement, select, true
from sqlalchemy.orm import Session

from onebert_store.blobs import BlobStore, FolderBlobs, Staged
from onebert_store.canonical import manifest_json
from onebert_store.delta import Delta
from onebert_store.disk import full_disk_is_typed, sync
from onebert_store.errors import (
    AliasConflict,
    AliasNotFound,
    StoreCorrupt,
    StoreLocked,
    TaskNotFound,
    VersionInUse,
    VersionNotFound,
)
from onebert_store.format import MAX_FILE_BYTES, dumps
from onebert_store.manifest import Manifest
from onebert_store.names import LIVE, check_alias, check_name
from onebert_store.rows import AliasRow, TaskRow, VersionRow, open_database, typed_database_errors
from onebert_store.strict_json import shown

_MAX_VERSION = 2**31 - 1


@dataclass(frozen=True)
class VersionRecord:
    """One immutable version of a task; `size` is in bytes, `created_at` in UTC."""

    task: str
    version: int
    digest: str
    size: int
    created_at: datetime
    manifest: Manifest


@dataclass(frozen=True)
class Alias:
    """Where an alias points, and where it pointed before; that version may be deleted by now."""

    version: int
    previous: int | None = None


@dataclass(frozen=True)
class TaskRecord:
    """A task with its version numbers, ascending, and its aliases."""

    name: str
    versions: tuple[int, ...]
    aliases: Mapping[str, Alias]


class Registry:
    """The store of one folder; thread-safe, and the folder's only owner until closed.

    Raises:
        StoreLocked: another process (or another Registry) has the folder.
        StoreCorrupt: the database is damaged, newer than this code, or missing while there are blobs.
        StorageFull: there is no room to create it.
    """

    def __init__(self, folder: Path) -> None:
        self._writing = threading.Lock()
        with full_disk_is_typed(), ExitStack() as opened:
            folder.mkdir(parents=True, exist_ok=True)
            sync(folder.parent)
            lock = opened.enter_context(open(folder / "lock", "ab"))
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise StoreLocked("another process is using this store") from None
            self._blobs: BlobStore = FolderBlobs(folder / "blobs", MAX_FILE_BYTES)
            # A new database would make an orphan of every blob that a backup brought back before it.
            self._engine = open_database(folder / "registry.sqlite3", may_create=not self._blobs.digests())
            opened.callback(self._engine.dispose)
            self._remove_orphans()
            self._opened = opened.pop_all()

    def close(self) -> None:
        """Lets go of the folder; a second call does nothing."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def stage(self) -> Staged:
        """Where an upload's body is written while it is hashed; raises StorageFull."""
        return self._blobs.stage()

    def add(self, task: str, delta: Delta, staged: Staged | None = None) -> tuple[VersionRecord, bool]:
        """Makes `delta` the next version of `task`, durable when this returns; a first version becomes `live`.

        The bytes come first and the row after them, so there is never a row without its blob. What a failure
        leaves is a blob without a row, which the next opening removes.

        Args:
            task: created if it does not exist.
            delta: its canonical bytes are stored.
            staged: the body `delta` was read from; used as it is where it is canonical, discarded otherwise.

        Returns:
            The record, and whether it is new: the same content is the same version.

        Raises:
            InvalidInput: the task's name.
            InvalidDelta: the delta cannot be written.
            TooLarge: the same.
            StorageFull: nothing was added.
        """
        with staged or nullcontext():
            check_name(task)
            data = dumps(delta)
            with self._writing:
                if staged and staged.digest == delta.digest:
                    staged.commit()
                else:
                    self._blobs.put(data)
                with self._transaction() as session:
                    return _add_version(session, task, delta, len(data))

    def tasks(self) -> list[TaskRecord]:
        """Every task that has versions, by name."""
        with self._transaction() as session:
            return _task_records(session, true())

    def task(self, name: str) -> TaskRecord:
        """One task.

        Raises:
            InvalidInput: that is not a name.
            TaskNotFound: no task has it.
        """
        with self._transaction() as session:
            _require_task(session, name)
            return _task_records(session, TaskRow.name == name)[0]

    def version(self, name: str, n: int) -> VersionRecord:
        """Version `n` of a task.

        Raises:
            InvalidInput: that is not a name.
            TaskNotFound: no task has it.
            VersionNotFound: the task has no such version.
        """
        with self._transaction() as session:
            return _version_record(_require_version(session, name, n))

    def versions(self) -> list[VersionRecord]:
        """Every version of every task, by task and number."""
        order = (VersionRow.task, VersionRow.version)
        with self._transaction() as session:
            return [_version_record(row) for row in session.scalars(select(VersionRow).order_by(*order))]

    def read(self, record: VersionRecord) -> bytes:
        """The canonical file of a version, verified.

        Raises:
            StoreCorrupt: the blob is missing or damaged.
            TaskNotFound: the task is gone.
            VersionNotFound: the version was deleted meanwhile.
        """
        try:
            return self._blobs.get(record.digest)
        except StoreCorrupt:
            self.version(record.task, record.version)
            raise

    def move_alias(self, task: str, alias: str, version: int, expected: int | None) -> Alias:
        """Points `alias` at `version` if it points at `expected` now (None: if it does not exist).

        Returns:
            The alias as it is now.

        Raises:
            InvalidInput: a name breaks the rule.
            TaskNotFound: no such task.
            VersionNotFound: the task has no such version.
            AliasConflict: the alias is somewhere else.
        """
        check_alias(alias)
        with self._writing, self._transaction() as session:
            _require_version(session, task, version)
            row = session.get(AliasRow, (task, alias))
            _require_at(row, task, alias, expected)
            if row is None:
                row = AliasRow(task=task, alias=alias, version=version)
                session.add(row)
            elif row.version != version:
                row.previous, row.version = row.version, version
            return Alias(row.version, row.previous)

    def delete_alias(self, task: str, alias: str, expected: int) -> None:
        """Deletes `alias` if it points at `expected` now.

        Raises:
            InvalidInput: a name breaks the rule.
            TaskNotFound: no such task.
            AliasNotFound: the task has no such alias.
            AliasConflict: the alias is somewhere else.
        """
        check_alias(alias)
        with self._writing, self._transaction() as session:
            _require_task(session, task)
            row = session.get(AliasRow, (task, alias))
            if row is None:
                raise AliasNotFound(f"{task} has no alias {alias}")
            _require_at(row, task, alias, expected)
            session.delete(row)

    def delete_version(self, task: str, n: int) -> None:
        """Deletes version `n`; its number is never used again, its blob goes with its last version.

        With its last version a task is gone, until a version is added to it again.

        Raises:
            InvalidInput: that is not a name.
            TaskNotFound: no such task.
            VersionNotFound: the task has no such version.
            VersionInUse: an alias points at it.
        """
        with self._writing:
            with self._transaction() as session:
                row = _require_version(session, task, n)
                at_it = (AliasRow.task == task, AliasRow.version == n)
                if aliases := session.scalars(select(AliasRow.alias).where(*at_it)).all():
                    raise VersionInUse(f"version {n} of {task} has the alias {', '.join(aliases)}")
                digest = row.digest
                session.delete(row)
                session.flush()
                shared = session.scalar(select(VersionRow.digest).where(VersionRow.digest == digest).limit(1))
            # After the commit: a crash in between leaves an orphan, never a row without its blob.
            if not shared:
                self._blobs.delete(digest)

    def _remove_orphans(self) -> None:
        with self._transaction() as session:
            kept = set(session.scalars(select(VersionRow.digest)))
        for digest in self._blobs.digests() - kept:
            self._blobs.delete(digest)

    @contextmanager
    def _transaction(self) -> Iterator[Session]:
        with typed_database_errors(), Session(self._engine) as session, session.begin():
            yield session


def _add_version(session: Session, task: str, delta: Delta, size: int) -> tuple[VersionRecord, bool]:
    same = (VersionRow.task == task, VersionRow.digest == delta.digest)
    if known := session.scalar(select(VersionRow).where(*same)):
        return _version_record(known), False
    row = session.get(TaskRow, task)
    first = not _has_versions(session, task)
    if row is None:
        row = TaskRow(name=task, last_version=0)
        session.add(row)
    row.last_version += 1
    session.flush()
    version = VersionRow(
        task=task,
        version=row.last_version,
        digest=delta.digest,
        size=size,
        created_at=datetime.now(UTC),
        manifest=manifest_json(delta.manifest),
    )
    session.add(version)
    session.flush()
    if first:
        session.add(AliasRow(task=task, alias=LIVE, version=version.version))
    return _version_record(version), True


def _task_records(session: Session, where: ColumnElement[bool]) -> list[TaskRecord]:
    """The tasks that `where` selects, by name, without those that have no versions; always three queries."""
    chosen = select(TaskRow.name).where(where, TaskRow.name.in_(select(VersionRow.task)))
    names = session.scalars(chosen.order_by(TaskRow.name)).all()
    versions: dict[str, list[int]] = {name: [] for name in names}
    aliases: dict[str, dict[str, Alias]] = {name: {} for name in names}
    for task, n in session.execute(
        select(VersionRow.task, VersionRow.version).where(VersionRow.task.in_(chosen)).order_by(VersionRow.version)
    ):
        versions[task].append(n)
    for row in session.scalars(select(AliasRow).where(AliasRow.task.in_(chosen)).order_by(AliasRow.alias)):
        aliases[row.task][row.alias] = Alias(row.version, row.previous)
    return [TaskRecord(name, tuple(versions[name]), aliases[name]) for name in names]


def _require_version(session: Session, task: str, n: int) -> VersionRow:
    _require_task(session, task)
    # The database refuses wider integers with an error of its own.
    row = session.get(VersionRow, (task, n)) if 0 < n <= _MAX_VERSION else None
    if row is None:
        raise VersionNotFound(f"{task} has no version {shown(str(n), 12)}")
    return row


def _require_task(session: Session, name: str) -> None:
    check_name(name)
    if not _has_versions(session, name):
        raise TaskNotFound(f"there is no task {name}")


def _has_versions(session: Session, task: str) -> bool:
    return session.scalar(select(VersionRow.version).where(VersionRow.task == task).limit(1)) is not None


def _require_at(row: AliasRow | None, task: str, alias: str, expected: int | None) -> None:
    found = row and row.version
    if found != expected:
        where = f"at version {found}" if found else "not set"
        raise AliasConflict(f"the alias {alias} of {task} is {where}")


def _version_record(row: VersionRow) -> VersionRecord:
    manifest = Manifest.model_validate_json(row.manifest)
    return VersionRecord(row.task, row.version, row.digest, row.size, row.created_at, manifest)
