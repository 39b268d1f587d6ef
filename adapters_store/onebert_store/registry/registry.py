"""Tasks, their immutable numbered versions and their movable aliases: rows in a database, bytes in a blob store.

Several threads, and several processes on one database, may change a registry at the same time. Each change is one
transaction whose statements decide by the rows that they changed; no lock of this process takes part.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from sqlalchemy import true
from sqlalchemy.exc import IntegrityError

from onebert_store.blobs.protocol import BlobWriter
from onebert_store.errors import AliasNotFound, StoreCorrupt, VersionInUse
from onebert_store.file.delta import Delta
from onebert_store.file.format import dumps
from onebert_store.file.manifest import Manifest
from onebert_store.registry import statements
from onebert_store.registry.database import TASKS, reading, writing
from onebert_store.registry.dialects.protocol import Adding
from onebert_store.registry.feed import Feed, last_change
from onebert_store.registry.grants import UNLIMITED, Quotas
from onebert_store.registry.keys import Keys
from onebert_store.registry.names import LIVE, check_alias, check_name
from onebert_store.registry.queries import (
    alias_conflict,
    alias_version,
    aliases_at,
    require_task,
    require_version,
    task_records,
    version_entries,
    version_record,
    whole_manifests,
)
from onebert_store.registry.records import CLI, Action, Actor, Added, Alias, TaskRecord, VersionEntry, VersionRecord
from onebert_store.registry.replicas import Replicas
from onebert_store.registry.store import Store, StoreAddress, open_store

_MEANWHILE = "an alias moved at the same time; try again"


@dataclass(frozen=True)
class Stored:
    """A file that is durable: its size in bytes, and the lock that keeps sweeps from it until it has a row."""

    size: int
    lock: Adding


class Registry:
    """The tasks of one store; thread-safe.

    Every method raises StorageUnavailable where the disk or the database refuses to work, and StorageFull where a
    write has no room; nothing was changed then. What changes something writes a change into the feed, with who made it,
    and gives its number (`seq`).

    Attributes:
        where: which database it is in, for people.
        shared: whether other processes may work with it at the same time.
        feed: what was changed.
        keys: who may come, beside the keys of the environment.
        replicas: the servers that follow it.
    """

    def __init__(self, store: Store) -> None:
        self.where = store.database.where
        self.shared = store.database.shared
        self.feed = Feed(store.database)
        self.keys = Keys(store.database)
        self.replicas = Replicas(store.database)
        self._store = store
        self._opened = ExitStack()

    @classmethod
    def open(cls, where: Path | StoreAddress) -> Self:
        """The registry of a store, made where there is none; see `open_store` for who else may have it open.

        Raises:
            InvalidSettings: the address is none.
            StoreLocked: another process (or another Registry) owns the store.
            StoreCorrupt: the database is damaged, newer than this code, or missing while there are blobs.
            StorageFull, StorageUnavailable: the store cannot be read or written.
            OSError: the folder cannot be made.
        """
        with ExitStack() as opened:
            registry = cls(opened.enter_context(open_store(where)))
            registry._opened = opened.pop_all()
            return registry

    def close(self) -> None:
        """Lets go of the store; a second call does nothing."""
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def writer(self) -> BlobWriter:
        """Takes an upload's body, and hashes it while it is written."""
        return self._store.blobs.writer()

    def add(
        self, task: str, delta: Delta, body: BlobWriter | None = None, by: Actor = CLI, most: Quotas = UNLIMITED
    ) -> tuple[VersionRecord, bool]:
        """Makes `delta` the next version of `task`, durable when this returns; a first version becomes `live`.

        The bytes come first and the row after them, so there is never a row without its blob. What a failure leaves
        is a blob without a row, which `gc.sweep` removes.

        Args:
            task: the task's name; the task is made if there is none.
            delta: what is stored, in canonical bytes.
            body: the upload that `delta` was read from; kept where its bytes are canonical, discarded otherwise.
            by: who adds it.
            most: how much that one may have.

        Returns:
            The record, and whether it is new: the same content is the same version. A damaged blob or manifest of
            that version is replaced.

        Raises:
            InvalidInput: the task's name breaks the rule.
            InvalidDelta: the delta cannot be written.
            TooLarge: the file would be over the limit.
            OverQuota: it would be more than `most`; nothing was added.
        """
        with body or nullcontext():
            check_name(task)
            with self.storing(delta, body) as stored:
                added = self.add_stored(task, delta, stored, by, most)
                return added.record, added.created

    @contextmanager
    def storing(self, delta: Delta, body: BlobWriter | None = None) -> Iterator[Stored]:
        """The first half of `add`: the bytes are durable, and no sweep removes them while the block runs.

        Waits while a sweep removes a batch of blobs.

        Yields:
            What `add_stored` needs to know.

        Raises:
            InvalidDelta, TooLarge: the delta cannot be written.
        """
        blobs = self._store.blobs
        data = dumps(delta)
        with self._store.database.adding() as lock:
            if body and body.digest == delta.digest:
                body.commit()
            else:
                blobs.put(data)
            yield Stored(len(data), lock)

    def add_stored(self, task: str, delta: Delta, stored: Stored, by: Actor = CLI, most: Quotas = UNLIMITED) -> Added:
        """The second half of `add`: writes the row, once, inside the `storing` block that gave `stored`.

        Content that the task has already is no change.

        Raises:
            InvalidInput: the task's name breaks the rule.
            OverQuota: it would be more than `most`; nothing was added.
        """
        check_name(task)
        with stored.lock.writing() as connection:
            record, created, first = statements.add_version(connection, task, delta, stored.size)
            if not created:
                return Added(record, created, last_change(connection))
            statements.count_upload(connection, task, by.principal, stored.size)
            alias = LIVE if first else None
            seq = self.feed.write(connection, by, Action.UPLOAD, task, record.version, alias)
            statements.check_quotas(connection, by.principal, most)
            return Added(record, created, seq)

    def require_room(self, task: str, size: int, by: Actor, most: Quotas) -> None:
        """Refuses before anything is stored what `add_stored` would refuse, so that refused files do not fill the disk.

        Raises:
            OverQuota: who adds a version of this size to this task would have more than it may.
        """
        if most.of_storage:
            with reading(self._store.database) as connection:
                statements.check_quotas(connection, by.principal, most, task, size)

    def tasks(self) -> list[TaskRecord]:
        """Every task that has versions, by name."""
        with reading(self._store.database) as connection:
            return task_records(connection, true())

    def task(self, name: str) -> TaskRecord:
        """One task.

        Raises:
            InvalidInput: the task's name breaks the rule.
            TaskNotFound: no task has this name.
        """
        with reading(self._store.database) as connection:
            require_task(connection, name)
            return task_records(connection, TASKS.c.name == name)[0]

    def version(self, name: str, n: int) -> VersionRecord:
        """Version `n` of a task.

        Raises:
            InvalidInput: the task's name breaks the rule.
            TaskNotFound: no task has this name.
            VersionNotFound: the task has no such version.
            StoreCorrupt: the manifest of this version is damaged; manifests of others may be whole.
        """
        with reading(self._store.database) as connection:
            return version_record(connection, name, n)

    def manifests(self, entries: Sequence[VersionEntry]) -> Iterator[tuple[VersionEntry, Manifest]]:
        """The manifests of many versions at once; those are left out that are gone or whose manifest is damaged."""
        with reading(self._store.database) as connection:
            yield from whole_manifests(connection, entries)

    def entries(self) -> list[VersionEntry]:
        """Every version of every task, by task and number, without manifests, of which one may be damaged.

        `version` gives the manifest of one version, and so does the file that `read` returns.
        """
        with reading(self._store.database) as connection:
            return version_entries(connection)

    def read(self, version: VersionEntry) -> bytes:
        """The canonical file of a version, verified.

        Raises:
            StoreCorrupt: the blob is missing or damaged.
            TaskNotFound: the task is gone.
            VersionNotFound: the version was deleted meanwhile.
        """
        with self._unless_deleted(version):
            return self._store.blobs.get(version.digest)

    def read_local(self, version: VersionEntry) -> bytes | None:
        """As `read`, without waiting for a bucket: None where the file has to be fetched."""
        with self._unless_deleted(version):
            return self._store.blobs.get_local(version.digest)

    def verify(self, version: VersionEntry, stop: Callable[[], bool] = lambda: False) -> bool:
        """Reads a version's file in pieces and compares its digest: a scrub, which needs no memory for the file.

        Args:
            version: whose file is read.
            stop: asked after each piece; true ends the reading.

        Returns:
            Whether the file was read to its end.

        Raises:
            StoreCorrupt: the blob is missing or damaged.
            TaskNotFound: the task is gone.
            VersionNotFound: the version was deleted meanwhile.
        """
        with self._unless_deleted(version):
            return self._store.blobs.verify(version.digest, stop)

    def move_alias(
        self, task: str, alias: str, version: int, expected: int | None, by: Actor = CLI
    ) -> tuple[Alias, int]:
        """Points `alias` at `version` if the alias points at `expected` now (None: if there is no such alias).

        Returns:
            The alias as it is now, and the number of the change; where the alias was there already, of the last one.

        Raises:
            InvalidInput: a name breaks the rule, or the task would have more aliases than a task may.
            TaskNotFound: no such task.
            VersionNotFound: the task has no such version.
            AliasConflict: the alias is somewhere else.
        """
        check_name(task)
        check_alias(alias)
        try:
            with writing(self._store.database, by.until) as connection:
                if moved := statements.move_alias(connection, task, alias, version, expected):
                    if version == expected:
                        return moved, last_change(connection)
                    seq = self.feed.write(connection, by, Action.PROMOTE, task, version, alias, expected)
                    if expected is None:
                        statements.check_aliases(connection, task)
                    return moved, seq
        # Only the foreign key is broken here: there is no such version.
        except IntegrityError:
            pass
        with reading(self._store.database) as connection:
            require_version(connection, task, version)
            raise alias_conflict(connection, task, alias)

    def delete_alias(self, task: str, alias: str, expected: int, by: Actor = CLI) -> int:
        """Deletes `alias` if the alias points at `expected` now; gives the number of the change.

        Raises:
            InvalidInput: a name breaks the rule.
            TaskNotFound: no such task.
            AliasNotFound: the task has no such alias.
            AliasConflict: the alias is somewhere else.
        """
        check_name(task)
        check_alias(alias)
        with writing(self._store.database, by.until) as connection:
            if statements.delete_alias(connection, task, alias, expected):
                return self.feed.write(connection, by, Action.DELETE_ALIAS, task, alias=alias, before=expected)
        with reading(self._store.database) as connection:
            require_task(connection, task)
            if alias_version(connection, task, alias) is None:
                raise AliasNotFound(f"{task} has no alias {alias}")
            raise alias_conflict(connection, task, alias)

    def delete_version(self, task: str, n: int, by: Actor = CLI) -> int:
        """Deletes version `n`; the number is never used again; the blob is an orphan if no other version has it.

        The blob stays until `gc.sweep` removes it, so a disk that fails here leaves rows and blobs as they were.
        With its last version a task is gone, until a version is added to it again.

        Returns:
            The number of the change.

        Raises:
            InvalidInput: the task's name breaks the rule.
            TaskNotFound: no such task.
            VersionNotFound: the task has no such version.
            VersionInUse: an alias points at it.
        """
        check_name(task)
        try:
            with writing(self._store.database, by.until) as connection:
                if statements.delete_version(connection, task, n):
                    return self.feed.write(connection, by, Action.DELETE_VERSION, task, n)
        # Only the foreign key is broken here: an alias points at the version. The transaction below reads which one.
        except IntegrityError:
            pass
        with reading(self._store.database) as connection:
            require_version(connection, task, n)
            aliases = ", ".join(aliases_at(connection, task, n))
        raise VersionInUse(f"version {n} of {task} has the alias {aliases}" if aliases else _MEANWHILE)

    def delete_task(self, task: str, by: Actor = CLI) -> int:
        """Deletes a task with all of its aliases and versions, at one moment; see `delete_version`.

        Returns:
            The number of the change.

        Raises:
            InvalidInput: the task's name breaks the rule.
            TaskNotFound: no such task.
            VersionInUse: another process moved an alias at the same time; nothing is deleted.
        """
        check_name(task)
        try:
            with writing(self._store.database, by.until) as connection:
                statements.delete_task(connection, task)
                return self.feed.write(connection, by, Action.DELETE_TASK, task)
        except IntegrityError:
            raise VersionInUse(_MEANWHILE) from None

    def rename_task(self, task: str, name: str, by: Actor = CLI) -> int:
        """Gives a task another name, at one moment: versions keep their numbers, aliases their places.

        The name that it had is free to be a new task, whose versions count on from its last number.

        Returns:
            The number of the change.

        Raises:
            InvalidInput: a name breaks the rule.
            TaskNotFound: no such task.
            TaskExists: there are versions of that name, or were; except that a task can have its last name back.
            VersionInUse: another process moved an alias at the same time; nothing is renamed.
        """
        check_name(task)
        check_name(name)
        try:
            with writing(self._store.database, by.until) as connection:
                statements.rename_task(connection, task, name)
                return self.feed.write(connection, by, Action.RENAME_TASK, task, name=name)
        except IntegrityError:
            raise VersionInUse(_MEANWHILE) from None

    @contextmanager
    def _unless_deleted(self, version: VersionEntry) -> Iterator[None]:
        try:
            yield
        except StoreCorrupt:
            with reading(self._store.database) as connection:
                require_version(connection, version.task, version.version)
            raise
