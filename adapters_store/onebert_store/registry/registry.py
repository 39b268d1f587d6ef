"""The registry: tasks, their immutable numbered versions and their aliases, as database rows plus blobs.

Several threads, and several processes on one database, may change a registry at the same time. Each change is one
transaction that decides by the number of rows its statements changed; the process holds no lock of its own.
"""

import json
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext, suppress
from dataclasses import dataclass
from math import inf
from pathlib import Path
from typing import Self

from pydantic import ValidationError
from sqlalchemy import Connection, select, true, tuple_
from sqlalchemy.exc import IntegrityError

from onebert_store.blobs.staging import StagedFile
from onebert_store.errors import AliasNotFound, CheckOutdated, StoreCorrupt, VersionInUse
from onebert_store.file.delta import Delta
from onebert_store.file.format import dumps
from onebert_store.file.manifest import Manifest
from onebert_store.registry import queries, statements
from onebert_store.registry.database import TASKS, VERSIONS
from onebert_store.registry.dialects.database import Lock
from onebert_store.registry.documents import Documents
from onebert_store.registry.feed import Feed, last_change
from onebert_store.registry.keeping import Keeping, check_keeping
from onebert_store.registry.keys import Keys
from onebert_store.registry.names import LIVE, check_alias, check_name
from onebert_store.registry.records import CLI, Action, Actor, Added, Alias, TaskRecord, VersionEntry, VersionRecord
from onebert_store.registry.replicas import Replicas
from onebert_store.registry.store import Store, StoreAddress, open_store
from onebert_store.registry.target import Precondition, Target, alone, check_target

_MEANWHILE = "an alias moved at the same time; try again"


@dataclass(frozen=True)
class Stored:
    """A durable file: its size in bytes, and the lock that keeps sweeps away until a row names it."""

    size: int
    lock: Lock


class Registry:
    """The tasks, versions and aliases of one store; thread-safe.

    Every method raises StorageUnavailable if the disk or the database fails, and StorageFull if a write has no room;
    nothing has changed then. Names that break the naming rule raise InvalidInput. Unknown tasks and versions raise
    TaskNotFound and VersionNotFound. Every change is recorded in the feed; methods that return an int return its number
    there (`seq`).

    Attributes:
        where: the database, in words for people.
        database: the database, for stores beside the registry.
        shared: True if other processes may open the registry at the same time.
    """

    def __init__(self, store: Store) -> None:
        self.database = store.database
        self.where = store.database.where
        self.shared = store.database.shared
        self.feed = Feed(store.database)
        self.documents = Documents(store.database)
        self.keys = Keys(store.database)
        self.replicas = Replicas(store.database)
        self._store = store
        self._opened = ExitStack()

    @classmethod
    def open(cls, where: Path | StoreAddress) -> Self:
        """Opens the registry of a store, and creates the store if it does not exist.

        Raises:
            InvalidSettings: the address is not valid.
            StoreLocked: another process (or another Registry) owns the store.
            StoreCorrupt: the database is damaged, newer than this code, or missing although there are blobs.
            OSError: the folder cannot be made.
        """
        with ExitStack() as opened:
            registry = cls(opened.enter_context(open_store(where)))
            registry._opened = opened.pop_all()
            return registry

    def close(self) -> None:
        self._opened.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def writer(self) -> StagedFile:
        """Returns a writer for an upload's body; it hashes the bytes while it writes them."""
        return self._store.blobs.writer()

    def add(
        self, task: str, delta: Delta, body: StagedFile | None = None, by: Actor = CLI
    ) -> tuple[VersionRecord, bool]:
        """Stores `delta` as the next version of `task`, durable on return; a task's first version becomes `live`.

        The blob is written before the row, so no row is ever without its blob. A failure in between leaves a blob
        without a row; `gc.sweep` removes it. `body`, the upload that `delta` was read from, is kept if its bytes are
        canonical.

        Returns:
            The record, and True if the version is new. Content that the task already has keeps its version number, and
            replaces that version's blob and manifest, in case they are damaged.

        Raises:
            InvalidDelta: the delta cannot be written.
            TooLarge: the file would be over the limit.
            OverQuota: the principal would exceed its quotas; nothing is added.
        """
        with body or nullcontext():
            check_name(task)
            with self.storing(delta, body) as stored:
                added = self.add_stored(task, delta, stored, by)
                return added.record, added.created

    @contextmanager
    def storing(self, delta: Delta, body: StagedFile | None = None, until: float = inf) -> Iterator[Stored]:
        """Writes the blob, which no sweep removes in the block, and waits until a time; InvalidDelta, TooLarge."""
        blobs = self._store.blobs
        data = dumps(delta)
        with self._store.database.adding(until) as lock:
            if body and body.digest == delta.digest:
                body.commit()
            else:
                blobs.put(data)
            yield Stored(len(data), lock)

    def add_stored(self, task: str, delta: Delta, stored: Stored, by: Actor = CLI, live: bool = True) -> Added:
        """Writes the row, once, in `storing`'s block; raises OverQuota if the principal would exceed its quotas.

        Args:
            live: whether a task's first version becomes `live`.
        """
        check_name(task)
        with stored.lock.writing() as connection:
            record, created, first = statements.add_version(connection, task, delta, stored.size, live)
            if not created:
                return Added(record, created, last_change(connection))
            statements.count_upload(connection, task, by.principal, stored.size)
            alias = LIVE if first else None
            seq = self.feed.write(connection, by, Action.UPLOAD, task, record.version, alias)
            statements.check_quotas(connection, by)
            return Added(record, created, seq)

    def require_room(self, task: str, size: int, by: Actor) -> None:
        """Raises OverQuota before the upload is written, so that rejected files do not fill the disk."""
        if by.quotas.of_storage:
            with self._store.database.reading() as connection:
                statements.check_quotas(connection, by, task, size)

    def tasks(self) -> list[TaskRecord]:
        with self._store.database.reading() as connection:
            return queries.task_records(connection, true())

    def task(self, name: str) -> TaskRecord:
        with self._store.database.reading() as connection:
            queries.require_task(connection, name)
            return queries.task_records(connection, TASKS.c.name == name)[0]

    def version(self, name: str, n: int) -> VersionRecord:
        """Reads one version with its manifest; raises StoreCorrupt if this manifest is damaged."""
        with self._store.database.reading() as connection:
            return queries.version_record(connection, name, n)

    def manifests(self, entries: Sequence[VersionEntry]) -> Iterator[tuple[VersionEntry, Manifest]]:
        """Reads many manifests in one query, in no order; skips versions that are gone or whose manifest is damaged."""
        wanted = {(entry.task, entry.version): entry for entry in entries}
        query = select(VERSIONS.c.task, VERSIONS.c.version, VERSIONS.c.manifest)
        query = query.where(tuple_(VERSIONS.c.task, VERSIONS.c.version).in_(list(wanted)))
        with self._store.database.reading() as connection:
            for task, version, manifest in connection.execute(query):
                with suppress(ValidationError):
                    yield wanted[task, version], Manifest.model_validate_json(manifest)

    def entries(self) -> list[VersionEntry]:
        """Lists all versions by task and number; without manifests, so that damaged ones do no harm."""
        with self._store.database.reading() as connection:
            return queries.version_entries(connection)

    def read(self, version: VersionEntry) -> bytes:
        """A version's canonical file; raises StoreCorrupt (missing, damaged), VersionNotFound or TaskNotFound."""
        with self._unless_deleted(version):
            return self._store.blobs.get(version.digest)

    def read_local(self, version: VersionEntry) -> bytes | None:
        """Reads like `read` but never waits for a bucket: None if the file has to be fetched."""
        with self._unless_deleted(version):
            return self._store.blobs.get_local(version.digest)

    def verify(self, version: VersionEntry) -> None:
        """Compares a blob with its digest piece by piece; raises like `read`."""
        with self._unless_deleted(version):
            self._store.blobs.verify(version.digest)

    def move_alias(
        self,
        task: str,
        alias: str,
        to: int | Target,
        expected: int | str | None,
        by: Actor = CLI,
        preconditions: Sequence[Precondition] = (),
        failed: Sequence[str] | None = None,
    ) -> tuple[Alias, int]:
        """Gives `alias` a new meaning if its tag (a number: one version) is `expected` (None: if it does not exist).

        The audit trail keeps the checks that `failed`, of a move past them. Returns the alias, and the number of the
        change, or of the latest change if the alias did not move. Raises InvalidInput if the target breaks a rule or
        the task would have too many aliases, AliasConflict if the alias means something else, and CheckOutdated if a
        precondition does not hold.
        """
        check_name(task)
        check_alias(alias)
        target = alone(to) if isinstance(to, int) else to
        check_target(target)
        with self._store.database.writing(by.until) as connection:
            exist = statements.lock_versions(connection, task, target.numbers)
            at = queries.alias_named(connection, task, alias)
            as_expected = (at and at.target.tag) == (expected and str(expected))
            moved = None
            if exist and as_expected:
                moved = statements.move_alias(connection, task, alias, target, at, by.payer(target))
            if moved is not None:
                if moved == at:
                    return moved, last_change(connection)
                places = target.version, alias, None if at is None else at.version
                action = Action.ROLL_BACK if at and at.goes_back(target) else Action.PROMOTE
                was, text = at.target.dumps() if at else None, target.dumps()
                checks = None if failed is None else json.dumps([*failed])
                seq = self.feed.write(
                    connection, by, action, task, *places, target=text, before_target=was, failed=checks
                )
                if at is None:
                    statements.check_aliases(connection, task)
                if not all(queries.holds(connection, task, read) for read in preconditions):
                    raise CheckOutdated(f"a rule for the alias {alias} of {task} has changed meanwhile; try again")
                return moved, seq
        with self._store.database.reading() as connection:
            for number in target.numbers:
                queries.require_version(connection, task, number)
            raise queries.alias_conflict(connection, task, alias)

    def delete_alias(self, task: str, alias: str, expected: int | str, by: Actor = CLI) -> int:
        """Deletes `alias` if its tag is `expected`; returns the change. Raises AliasNotFound, AliasConflict."""
        check_name(task)
        check_alias(alias)
        with self._store.database.writing(by.until) as connection:
            at = queries.alias_named(connection, task, alias)
            if at and at.target.tag == str(expected) and statements.delete_alias(connection, task, alias, at.target):
                was = at.target.dumps()
                return self.feed.write(
                    connection, by, Action.DELETE_ALIAS, task, alias=alias, before=at.version, before_target=was
                )
        with self._store.database.reading() as connection:
            queries.require_task(connection, task)
            if queries.alias_named(connection, task, alias) is None:
                raise AliasNotFound(f"{task} has no alias {alias}")
            raise queries.alias_conflict(connection, task, alias)

    def delete_version(self, task: str, n: int, by: Actor = CLI) -> int:
        """Deletes version `n`, never reused; its blob stays until a sweep. Raises VersionInUse if it is aliased."""
        check_name(task)
        try:
            with self._store.database.writing(by.until) as connection:
                if statements.delete_version(connection, task, n):
                    if needed := queries.aliases_at(connection, task, n):
                        raise VersionInUse(f"version {n} of {task} has the alias {', '.join(needed)}")
                    return self.feed.write(connection, by, Action.DELETE_VERSION, task, n)
        # Only the foreign key can fail here: an alias points at the version. The next transaction reads which one.
        except IntegrityError:
            pass
        with self._store.database.reading() as connection:
            queries.require_version(connection, task, n)
            aliases = ", ".join(queries.aliases_at(connection, task, n))
        raise VersionInUse(f"version {n} of {task} has the alias {aliases}" if aliases else _MEANWHILE)

    def delete_task(self, task: str, by: Actor = CLI) -> int:
        """Deletes a task, its aliases and versions; raises VersionInUse if another process moved an alias meanwhile."""
        check_name(task)

        def delete(connection: Connection) -> int:
            statements.delete_task(connection, task)
            return self.feed.write(connection, by, Action.DELETE_TASK, task)

        try:
            return self.database.erase(delete, by.until)
        except IntegrityError:
            raise VersionInUse(_MEANWHILE) from None

    def set_keeping(self, task: str, keeping: Keeping, by: Actor = CLI) -> int:
        """Sets how much of a task's answers is kept; raises InvalidInput if a number breaks its rule."""
        check_name(task)
        check_keeping(keeping)
        with self.database.writing(by.until) as connection:
            statements.set_keeping(connection, task, keeping)
            return self.feed.write(connection, by, Action.SET_SAMPLES, task)

    def delete_keeping(self, task: str, by: Actor = CLI) -> int:
        """Ends the keeping of a task's answers; returns the number of the change, or the latest if there was none."""
        check_name(task)

        def delete(connection: Connection) -> int:
            queries.require_task(connection, task)
            if not statements.delete_keeping(connection, task):
                return last_change(connection)
            return self.feed.write(connection, by, Action.DELETE_SAMPLES, task)

        return self.database.erase(delete, by.until)

    @contextmanager
    def _unless_deleted(self, version: VersionEntry) -> Iterator[None]:
        try:
            yield
        except StoreCorrupt:
            with self._store.database.reading() as connection:
                queries.require_version(connection, version.task, version.version)
            raise
