"""Changes to the registry: uploads, aliases, deletions; its feed brings them to memory."""

import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import replace
from typing import NamedTuple

from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.versions.directory import Directory
from onebert_server.versions.follower import Follower, Offer
from onebert_server.versions.manifests import Manifests
from onebert_server.versions.progress import Progress
from onebert_server.versions.residency.residents import PROVED_TOGETHER, Residents
from onebert_server.versions.version import State, Version
from onebert_store.blobs.staging import StagedFile
from onebert_store.errors import DeadlineExceeded, InvalidInput, NotFound, OneBertError, StoreCorrupt, TooLarge
from onebert_store.file.delta import Delta
from onebert_store.file.format import loads
from onebert_store.file.manifest import SHADOWED
from onebert_store.registry.records import Added, Alias, VersionEntry
from onebert_store.registry.registry import Registry, Stored
from onebert_store.registry.target import Precondition, Target

# Seconds of a start for loading versions; the others are loaded while the server answers. A thousand BitFit tasks take
# 8 seconds on two cores.
LOAD_SECONDS = 10.0
# Up to this many versions, a start reads the manifests of versions without an alias; otherwise they are read on demand.
LEARNED_AT_START = 20_000
# Errors of the disk, as opposed to errors of a request.
STORAGE_CODES = frozenset({"storage-full", "storage-unavailable"})

Deleting = Callable[[str, float], AbstractContextManager[None]]
"""Is entered with the name of a task before the deletion, and left after it, within the request's deadline."""


class UploadResult(NamedTuple):
    """The result of an upload: its version, whether that is new, and the number of the change that shows it."""

    entry: VersionEntry
    created: bool
    seq: int


class Catalog:
    """Changes the registry, and has the follower show each change before the request is answered.

    Every change works on the current state of the registry: another replica may have changed it a moment ago. Methods
    that return a number return the last change that a reader must have seen to see this one.

    All methods but `in_memory` block; the event loop calls them through threads. Uploads come one at a time, from one
    thread.

    Args:
        max_trained_bytes: bound of files that this server makes; uploads are bounded while they arrive.
        deleting: the hooks around each deletion of a task or a version.
        storage: the hooks that return the state of extensions' storage.
    """

    def __init__(
        self,
        registry: Registry,
        residents: Residents,
        follower: Follower,
        max_trained_bytes: int,
        deleting: Sequence[Deleting] = (),
        storage: Sequence[Callable[[], str]] = (),
    ) -> None:
        self._registry = registry
        self.manifests = Manifests(registry, residents)
        self._storage = storage
        self._deleting = deleting
        self._max_trained_bytes = max_trained_bytes
        self._residents = residents
        self._follower = follower
        # SQLite's writers wait for each other by polling, which takes longer than waiting for this lock.
        self._changes = threading.Lock()
        # Error code of the last change; error code and time of the last failed poll.
        self._unchanged = "ok"
        self._unread, self._unread_at = "ok", 0.0

    @property
    def directory(self) -> Directory:
        return self._residents.directory

    @property
    def storage(self) -> str:
        """The error code if the disk refused the last change, or if the registry cannot be read now; else "ok"."""
        unread = self._unread if self._unread_at >= self._follower.polled_at else "ok"
        states = self._unchanged, unread, *(state() for state in self._storage)
        return next((state for state in states if state != "ok"), "ok")

    def load(self, progress: Progress) -> list[Version]:
        """Registers every version, and loads those with an alias, live ones first, until the bank is full.

        A version that cannot be loaded is marked and does not stop the others. Call it once, on a thread that computes
        alone, before any request reaches the directory. Returns the versions that are left when the time for a start is
        over, or none if the bank is full.
        """
        until = time.monotonic() + LOAD_SECONDS
        self._follower.load()
        unloaded = self._load_all(self.directory.aliased(), progress, until)
        if self.directory.counts()["versions"] <= LEARNED_AT_START:
            versions = self.directory.versions()
            progress.begin("manifests", len(versions))
            self.manifests.learn_all(versions, progress.advance)
        return unloaded

    def upload(self, task: str, body: StagedFile, context: Context, live: bool = True) -> UploadResult:
        """Takes an upload: reads, checks, folds, installs, stores and publishes it, or leaves no trace of it.

        Args:
            live: whether it becomes live if it is the task's first version.

        Raises:
            Forbidden, TaskNotFound: see `Principal.require`.
            InvalidDelta: the file is invalid.
            OverQuota: the principal would exceed its quota of tasks or bytes.
            BankFull, QueueFull, ShuttingDown, StorageFull: the server cannot take it now.
        """
        with body:
            context.principal.require(Action.UPLOAD, task)
            # Its time begins anew: the body may have taken any time to arrive.
            context = replace(context, deadline=time.monotonic() + context.deadline - context.arrived)
            delta = loads(body.read())
            self.catch_up()
            if (known := self.directory.find(task, delta.digest)) and self._is_whole(known):
                return UploadResult(known.entry, False, self.directory.position.seq)
            self.require_room(task, body.size, context)
            slot = self._residents.install(delta)
            offer = Offer(task, delta.digest, slot, slot.num_bytes)
            try:
                # Store the bytes before the change takes its lock: to make them durable takes long, and longer during a
                # sweep of the store.
                with self._noting_storage(), self._registry.storing(delta, body, context.deadline) as stored:
                    added = self._register(offer, delta, stored, context, live)
            finally:
                # The slot of a published version belongs to the directory, even if a later step failed.
                if not offer.taken:
                    slot.release()
            return UploadResult(added.record, added.created, added.seq)

    def upload_trained(self, task: str, content: bytes, context: Context, live: bool) -> UploadResult:
        """Takes a file that this server has made like an upload; TooLarge too, within the same bound."""
        if len(content) > self._max_trained_bytes:
            raise TooLarge(f"the version has {len(content)} bytes, and an upload at most {self._max_trained_bytes}")
        with self._registry.writer() as body:
            body.write(content)
            return self.upload(task, body, context, live)

    def require_room(self, task: str, size: int, context: Context) -> None:
        """Raises OverQuota if one more version of a task, of `size` bytes, would exceed the principal's quotas."""
        self._registry.require_room(task, size, context.actor)

    @asynccontextmanager
    async def in_memory(self, task: str, numbers: Sequence[int], context: Context) -> AsyncIterator[None]:
        """Keeps versions in memory while the block runs; waits for their loading on the event loop, and on no thread.

        It does nothing if one is missing: `move_alias` raises the error. See `Residents.ready` for other errors.
        """
        context.principal.require(Action.PROMOTE, task)
        try:
            pinned = self.directory.pin([f"{task}@{number}" for number in numbers], context.principal)
        except (NotFound, InvalidInput):
            pinned = []
        try:
            await self._residents.ready(pinned, context)
            yield
        finally:
            self.directory.unpin(pinned)

    def catch_up(self) -> None:
        """Brings the directory up to date with the registry."""
        try:
            self._follower.catch_up()
        except OneBertError as error:
            if error.code in STORAGE_CODES:
                self._unread, self._unread_at = error.code, time.monotonic()
            raise

    def move_alias(
        self,
        task: str,
        alias: str,
        target: Target,
        expected: str | None,
        context: Context,
        preconditions: Sequence[Precondition] = (),
        failed: Sequence[str] | None = None,
    ) -> tuple[Alias, int]:
        """Moves an alias by compare-and-set, in effect for every request that is admitted after it returns.

        Call it after `catch_up` and inside `in_memory`, so that no request is sent to a version that cannot answer. See
        `Registry.move_alias` for its errors; InvalidInput too if answers of a shadow are not labels to compare.
        """
        context.principal.require(Action.PROMOTE, task)
        self._check_shadows(task, target)
        with self._changing(context.deadline):
            to = task, alias, target, expected
            moved, seq = self._registry.move_alias(*to, context.actor, preconditions, failed)
            self._follower.reach(seq)
            return moved, seq

    def _check_shadows(self, task: str, target: Target) -> None:
        for number in target.numbers if target.shadows else ():
            with suppress(NotFound):
                self.manifests.learn(version := self.directory.version(task, number))
                if version.known_facts and version.known_facts.task_type not in SHADOWED:
                    kind = version.known_facts.task_type
                    raise InvalidInput(f"a shadow's labels are compared, and {task}@{number} is a {kind} task")

    def delete_alias(self, task: str, alias: str, expected: str, context: Context) -> int:
        """Deletes an alias if its tag is `expected`."""
        context.principal.require(Action.PROMOTE, task)
        return self.change(self._registry.delete_alias, context, task, alias, expected)

    def change(self, change: Callable[..., int], context: Context, *arguments: object) -> int:
        """Makes a change of the registry, `change(*what, actor)`, and shows it; returns its number."""
        with self._changing(context.deadline):
            seq = change(*arguments, context.actor)
            self._follower.reach(seq)
            return seq

    def delete_version(self, task: str, version: int, context: Context) -> int:
        """Deletes a version without an alias; requests that hold it are still answered by it."""
        context.principal.require(Action.DELETE, task)
        with self._around_deletion(task, context):
            return self.change(self._registry.delete_version, context, task, version)

    def delete_task(self, task: str, context: Context) -> int:
        """Deletes a task with its aliases and versions; requests that hold a version are still answered."""
        context.principal.require(Action.DELETE, task)
        with self._around_deletion(task, context):
            return self.change(self._registry.delete_task, context, task)

    @contextmanager
    def _around_deletion(self, task: str, context: Context) -> Iterator[None]:
        with ExitStack() as entered:
            for listener in self._deleting:
                entered.enter_context(listener(task, context.deadline))
            yield

    def read_delta(self, version: Version) -> bytes:
        """Returns the canonical bytes of a version, verified."""
        return self._registry.read(version.entry)

    def _load_all(self, versions: list[Version], progress: Progress, until: float) -> list[Version]:
        progress.begin("versions", len(versions))
        fetches, room = self._residents.fetches, True
        while room and time.monotonic() < until and (versions or fetches.arrived(until - time.monotonic())):
            together, versions = versions[:PROVED_TOGETHER], versions[PROVED_TOGETHER:]
            for version in together:
                self.directory.begin_loading(version)
            loaded = {**fetches.arrived(), **dict.fromkeys(together, "")}
            room = self._residents.load(loaded)
            progress.advance(sum(version.state is not State.LOADING for version in loaded))
        unloaded = fetches.give_up() + versions
        return unloaded if room else []

    def _is_whole(self, version: Version) -> bool:
        """Whether a version's stored file is what its digest says; the same upload replaces a damaged one."""
        try:
            self._registry.verify(version.entry)
        except StoreCorrupt:
            return False
        return True

    def _register(self, offer: Offer, delta: Delta, stored: Stored, context: Context, live: bool) -> Added:
        with self._follower.offering(offer):
            with self._changing(context.deadline):
                added = self._registry.add_stored(offer.task, delta, stored, context.actor, live)
                self._follower.reach(added.seq)
            if not added.created:
                # Registered already: it is unavailable here, its file was damaged, or another replica has taken the
                # same content meanwhile.
                self._follower.show_registered(added.record)
            return added

    @contextmanager
    def _changing(self, until: float) -> Iterator[None]:
        """Lets in one change at a time; raises DeadlineExceeded if other changes are still running at `until`."""
        if not self._changes.acquire(timeout=min(max(0.0, until - time.monotonic()), threading.TIMEOUT_MAX)):
            raise DeadlineExceeded(
                "other changes were waited for until the request's time was over; nothing is changed"
            )
        try:
            with self._noting_storage():
                yield
        # After any failure: one that came after the commit has still made the change.
        except Exception:
            with suppress(OneBertError):  # the caller gets the first error
                self._follower.catch_up()
            raise
        finally:
            self._changes.release()

    @contextmanager
    def _noting_storage(self) -> Iterator[None]:
        try:
            yield
        except OneBertError as error:
            if error.code in STORAGE_CODES:
                self._unchanged = error.code
            raise
        self._unchanged = "ok"
