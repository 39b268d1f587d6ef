"""Changes to what is registered: uploads, aliases, deletions; in the registry first, and then in memory."""

import threading
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress

from onebert_server.context import Context
from onebert_server.engine.engine import Engine
from onebert_server.principal import Action
from onebert_server.progress import Progress
from onebert_server.versions.directory import Directory
from onebert_server.versions.residents import PROVED_TOGETHER, Residents
from onebert_server.versions.version import State, Version
from onebert_store.command import console
from onebert_store.errors import InvalidInput, NotFound, OneBertError, StoreCorrupt, VersionUnavailable
from onebert_store.file.delta import Delta
from onebert_store.file.format import loads
from onebert_store.file.manifest import Manifest
from onebert_store.registry.blobs import BlobWriter
from onebert_store.registry.names import LIVE
from onebert_store.registry.records import Alias, VersionEntry, VersionRecord
from onebert_store.registry.registry import Registry, Stored

# The registry cannot write: what the disk says of it, rather than what is wrong with a request.
STORAGE_CODES = frozenset({"storage-full", "storage-unavailable"})


class Catalog:
    """Keeps registry and directory in step: every change is in the registry before a request can see it.

    All methods but `in_memory` block; the event loop calls them through threads. Uploads come one at a time, from one
    thread.

    Attributes:
        storage: "ok", or the code of the error with which the disk refused the last change.
    """

    def __init__(self, engine: Engine, registry: Registry, residents: Residents) -> None:
        self.storage = "ok"
        self._engine = engine
        self._registry = registry
        self._residents = residents
        self._changes = threading.Lock()

    @property
    def directory(self) -> Directory:
        """What requests resolve against."""
        return self._residents.directory

    def load(self, progress: Progress) -> None:
        """Registers every version, and loads those that aliases point at, live ones first, as many as the bank holds.

        One that cannot be loaded is marked and does not stop the others. To be called once, on a thread that computes
        alone, before anything is asked of the directory.

        Raises:
            ShuttingDown: the start was given up.
        """
        aliases = {task.name: task.aliases for task in self._registry.tasks()}
        versions = [Version(entry) for entry in self._registry.entries()]
        for version in versions:
            self.directory.publish(version, aliases[version.entry.task])
        aliased = [version for version in versions if _pointing_at(version, aliases)]
        self._load_all(sorted(aliased, key=lambda one: LIVE not in _pointing_at(one, aliases)), progress)
        progress.begin("manifests", len(versions))
        for version in versions:
            if version.known_facts is None:
                self._learn(version)
            progress.advance()

    def writer(self, task: str, context: Context) -> BlobWriter:
        """What takes the body of an upload, which is refused here before a byte of the body is read.

        Raises:
            Forbidden, TaskNotFound: the principal may not upload to this task, whether or not there is one.
        """
        context.principal.require(Action.UPLOAD, task)
        return self._registry.writer()

    def upload(self, task: str, body: BlobWriter, context: Context) -> tuple[VersionEntry, bool]:
        """Takes an upload: reads, checks, folds, installs, proves, stores, publishes; or leaves no trace of it.

        Returns:
            The version that holds the content, and whether it is new.

        Raises:
            Forbidden, TaskNotFound: see `writer`.
            InvalidDelta: what is wrong with the file.
            BankFull, QueueFull, ShuttingDown, StorageFull: what is wrong with the server.
        """
        with body:
            context.principal.require(Action.UPLOAD, task)
            delta = loads(body.read())
            if known := self.directory.find(task, delta.digest):
                return known.entry, False
            slot = self._residents.install(delta)
            published = False
            try:
                proof = self._residents.proof(delta)
                proof.check(proof.begin(self._engine, slot).result())
                # The bytes first: to make them durable takes long, and longer while a sweep of the store is under way.
                with self._noting_storage(), self._registry.storing(delta, body) as stored, self._changing():
                    record, created, aliases = self._add_stored(task, delta, stored)
                    self.directory.publish(Version(record, slot, self._residents.row_bytes(slot)), aliases)
                    published = True
            except BaseException:
                # The slot of a published version is the directory's, whatever fails after that.
                if not published:
                    self._residents.give_back(slot)
                raise
            return record, created

    @asynccontextmanager
    async def in_memory(self, task: str, version: int, context: Context) -> AsyncIterator[None]:
        """Holds a version in memory while the block runs; waits for its loading on the event loop, and on no thread.

        Nothing is held where there is no such version: `move_alias` says what is wrong.

        Raises:
            Forbidden, TaskNotFound: the principal may not move aliases of this task.
            VersionUnavailable: it cannot be loaded.
            DeadlineExceeded: it was not loaded within the request's time.
            QueueFull, OverShare: as many requests wait for versions as may.
        """
        context.principal.require(Action.PROMOTE, task)
        try:
            pinned = self.directory.pin([f"{task}@{version}"], context.principal)
        except (NotFound, InvalidInput):
            pinned = []
        try:
            await self._residents.ready(pinned, context)
            yield
        finally:
            self.directory.unpin(pinned)

    def move_alias(self, task: str, alias: str, version: int, expected: int | None, context: Context) -> Alias:
        """Compare-and-set; in effect for every request that is admitted after it returns.

        To be called inside `in_memory`, so that nobody is sent to a version that cannot answer.

        Raises:
            Forbidden: the principal may not move aliases.
            InvalidInput, NotFound, AliasConflict: see `Registry.move_alias`.
            VersionUnavailable: memory did not know the version, and knows it from now on.
        """
        context.principal.require(Action.PROMOTE, task)
        with self._changing():
            self._require_known(task, version)
            moved = self._registry.move_alias(task, alias, version, expected)
            self.directory.set_alias(task, alias, moved)
            return moved

    def delete_alias(self, task: str, alias: str, expected: int, context: Context) -> None:
        """Deletes an alias if it is where it is said to be."""
        context.principal.require(Action.PROMOTE, task)
        with self._changing():
            self._registry.delete_alias(task, alias, expected)
            self.directory.set_alias(task, alias, None)

    def delete_version(self, task: str, version: int, context: Context) -> None:
        """Deletes a version that no alias points at; requests that hold it are still answered by it."""
        context.principal.require(Action.DELETE, task)
        with self._changing():
            try:
                self._registry.delete_version(task, version)
            # Whatever the failure is: one that came after the commit has deleted the version all the same.
            except Exception:
                if self._is_gone(task, version):
                    self.directory.retire(task, version)
                raise
            self.directory.retire(task, version)

    def delete_task(self, task: str, context: Context) -> None:
        """Deletes a task with all of its aliases and versions; requests that hold one of these are still answered."""
        context.principal.require(Action.DELETE, task)
        with self._changing():
            try:
                self._registry.delete_task(task)
            # As in `delete_version`.
            except Exception:
                if self._is_gone(task):
                    self._retire_all(task)
                raise
            self._retire_all(task)

    def manifest(self, entry: VersionEntry) -> Manifest:
        """The whole manifest of a version; from its file where the registry's copy is damaged."""
        try:
            return self._registry.version(entry.task, entry.version).manifest
        except StoreCorrupt:
            return loads(self._registry.read(entry)).manifest

    def read_delta(self, version: Version) -> bytes:
        """The canonical bytes of a version, verified."""
        try:
            return self._registry.read(version.entry)
        except StoreCorrupt as error:
            self._residents.found_damaged(version, error)
            raise

    def _load_all(self, versions: list[Version], progress: Progress) -> None:
        progress.begin("versions", len(versions))
        room = True
        with console.progress() as bar:
            shown = bar.add_task("loading versions", total=len(versions))
            for start in range(0, len(versions), PROVED_TOGETHER):
                together = versions[start : start + PROVED_TOGETHER]
                if room:
                    for version in together:
                        self.directory.begin_loading(version)
                    room = self._residents.load(together, may_evict=False)
                progress.advance(len(together))
                bar.advance(shown, len(together))

    def _learn(self, version: Version) -> None:
        """Reads the manifest of a version that is not loaded."""
        try:
            record = VersionRecord(**vars(version.entry), manifest=self.manifest(version.entry))
        except OneBertError as error:
            # One that could not be loaded keeps its own reason, and the time of its next try.
            if version.state is State.REGISTERED:
                self._residents.failed(version, error)
        else:
            self.directory.know(version, record)

    def _add_stored(self, task: str, delta: Delta, stored: Stored) -> tuple[VersionRecord, bool, Mapping[str, Alias]]:
        try:
            return self._registry.add_stored(task, delta, stored)
        # Whatever the failure is: one that came after the commit has added the version all the same.
        except Exception:
            with suppress(OneBertError):  # the caller is told of the error that came first
                self._catch_up(task)
            raise

    def _require_known(self, task: str, version: int) -> None:
        """Refuses a version that the registry has and memory had not; nothing happens where the registry has none."""
        with suppress(NotFound):
            self.directory.version(task, version)
            return
        with suppress(NotFound):
            self._catch_up(task)
            self.directory.version(task, version)
            error = VersionUnavailable(f"version {version} of {task} has to be loaded first; try again")
            error.retry_after = 1
            raise error

    def _catch_up(self, task: str) -> None:
        """Registers in memory what the registry has of a task and memory has not, because a change failed half way.

        Raises:
            TaskNotFound: the registry has no such task.
        """
        aliases = self._registry.task(task).aliases
        known: set[int] = set()
        with suppress(NotFound):
            known.update(self.directory.task(task).versions)
        for entry in self._registry.entries():
            if entry.task == task and entry.version not in known:
                known.add(entry.version)
                version = Version(entry)
                # There is never an alias that points at a version which is not there yet.
                self.directory.publish(version, {name: at for name, at in aliases.items() if at.version in known})
                self._learn(version)

    def _retire_all(self, task: str) -> None:
        """Forgets a task in memory; nothing happens where there is no such task."""
        with suppress(NotFound):
            entry = self.directory.task(task)
            # The aliases first: there is never one that points at a version which is gone.
            for alias in entry.aliases:
                self.directory.set_alias(task, alias, None)
            for version in entry.versions:
                self.directory.retire(task, version)

    def _is_gone(self, task: str, version: int | None = None) -> bool:
        """Whether the registry has no such version, or no such task; false where the registry cannot say."""
        try:
            found = self._registry.task(task)
        except NotFound:
            return True
        # The caller raises the error that came first.
        except OneBertError:
            return False
        return version is not None and version not in found.versions

    @contextmanager
    def _changing(self) -> Iterator[None]:
        """Lets in one change at a time, and notes in `storage` whether the disk took it."""
        with self._changes, self._noting_storage():
            yield

    @contextmanager
    def _noting_storage(self) -> Iterator[None]:
        try:
            yield
        except OneBertError as error:
            if error.code in STORAGE_CODES:
                self.storage = error.code
            raise
        self.storage = "ok"


def _pointing_at(version: Version, aliases: Mapping[str, Mapping[str, Alias]]) -> set[str]:
    """The names of the aliases that point at a version."""
    entry = version.entry
    return {name for name, at in aliases[entry.task].items() if at.version == entry.version}
