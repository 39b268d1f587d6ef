"""Follows the registry's feed and applies every change, this replica's own too, to the directory."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby
from operator import attrgetter

from onebert_server.engine.host import Slot
from onebert_server.engine.memory import collecting_nothing
from onebert_server.versions.directory import Directory
from onebert_server.versions.presence import Presence
from onebert_server.versions.version import Version
from onebert_store.errors import OneBertError
from onebert_store.registry.feed import Feed
from onebert_store.registry.records import Action, Alias, Change, VersionEntry, VersionRecord

logger = logging.getLogger("onebert.follower")

# Seconds between two polls of the feed without a notification.
POLL_EVERY = 0.5
# Seconds of one wait for a notification; closing a replica takes that long.
LISTEN_FOR = 0.5
# Changes per read.
READ_TOGETHER = 500


@dataclass(eq=False)
class Offer:
    """A folded and checked row for a version that is about to be registered; `taken` once the directory has it."""

    task: str
    digest: str
    slot: Slot
    row_bytes: int
    taken: bool = False


class Follower:
    """Brings the directory to the state of the registry; any thread may ask for that, and its own thread polls.

    Args:
        told: gets each change once it is shown, under a lock, so it must not wait.

    Attributes:
        polled_at: time of the last successful poll of the feed; the directory shows every change that was
            committed before.
    """

    def __init__(
        self,
        feed: Feed,
        directory: Directory,
        presence: Presence | None = None,
        told: Callable[[Change], None] = lambda _: None,
    ) -> None:
        self.polled_at = time.monotonic()
        self._feed = feed
        self._directory = directory
        self._position = directory.position
        self._presence = presence
        self._told = told
        # Held while changes are read and applied: each is applied once, in its order.
        self._applying = threading.Lock()
        # Time of the last change that the directory shows; None before the first one.
        self._shown_at: datetime | None = None
        self._offer: Offer | None = None
        self._failing = False
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"onebert-{name}", daemon=True)
            for work, name in ((self._run, "follower"), (self._listen, "listener"))
        ]

    def start(self) -> None:
        """Starts to follow; when it returns, the directory shows all changes made while this replica loaded."""
        # In this order: a request that waits for all replicas waits for this one from now on, or its change came before
        # and is read next.
        self._report()
        self.catch_up()
        for thread in self._threads:
            thread.start()

    @property
    def dead(self) -> bool:
        follower = self._threads[0]
        return follower.ident is not None and not follower.is_alive() and not self._ended.is_set()

    @property
    def age(self) -> float:
        """Upper bound on the age of the directory's state, in seconds."""
        return max(0.0, time.monotonic() - self.polled_at)

    def close(self) -> None:
        self._ended.set()
        self._position.wanted.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        if self._presence is not None:
            with suppress(OneBertError):  # it counts as dead some seconds later
                self._presence.leave()

    def load(self) -> None:
        """Brings the directory to a snapshot of the registry; raises StorageUnavailable or StoreCorrupt."""
        with self._applying:
            now = time.monotonic()
            self._load()
            self.polled_at = now

    def catch_up(self) -> None:
        """Applies every change committed until now; if the registry cannot be read, the directory stays as it is."""
        with self._applying:
            self._position.begin_poll()
            now = time.monotonic()
            last = self._feed.last()
            if last.seq < self._position.seq or (last.seq == self._position.seq and last.at != self._shown_at):
                # An older registry was restored, and reuses the numbers of lost changes.
                self._directory.fetch(self._load())
            while self._position.seq < last.seq:
                changes = self._feed.read(self._position.seq, READ_TOGETHER, self._shown_at)
                # The replica that moved an alias has loaded the version. This one has not, and will soon be asked.
                self._directory.fetch(self._apply(changes))
            self.polled_at = now
            self._position.end_poll()

    def reach(self, seq: int) -> None:
        """Returns when the directory shows a committed change; raises if the registry cannot be read."""
        if self._position.seq < seq:
            self.catch_up()

    @contextmanager
    def offering(self, offer: Offer) -> Iterator[None]:
        """Offers a row for a version that the block registers; if it is not `taken` by the end, the caller keeps it."""
        with self._applying:
            self._offer = offer
        try:
            yield
        finally:
            with self._applying:
                self._offer = None

    def show_registered(self, record: VersionRecord) -> None:
        """Shows a version as it is registered, with the row that is offered for it, whatever the feed shows of it."""
        with self._applying:
            self._reconcile({record.task: {record.version}}, known=[record])

    def _run(self) -> None:
        while not self._ended.is_set():
            self._position.wanted.clear()
            try:
                self.catch_up()
                self._report()
                self._failing = False
            except OneBertError as error:
                if not self._failing:
                    logger.error("the registry cannot be followed: %s", error.detail)
                self._failing = True
            # Catch everything: without this thread the replica would fall behind.
            except Exception:
                logger.exception("the follower goes on after an unexpected error")
            self._position.wanted.wait(POLL_EVERY)

    def _listen(self) -> None:
        """Wakes the follower when the database notifies of a change; without notifications the follower polls."""
        while not self._ended.is_set():
            try:
                with self._feed.listening() as wait_for_notification:
                    while wait_for_notification is not None and not self._ended.is_set():
                        if wait_for_notification(LISTEN_FOR):
                            self._position.wanted.set()
                if wait_for_notification is None:
                    return
            except OneBertError:
                # The follower's thread logs this error.
                self._ended.wait(POLL_EVERY)
            # As in `_run`.
            except Exception:
                logger.exception("the follower listens again after an unexpected error")
                self._ended.wait(POLL_EVERY)

    def _report(self) -> None:
        if self._presence is not None:
            self._presence.report(self._position.seq)

    def _apply(self, changes: Sequence[Change]) -> dict[Version, bool]:
        """Shows the current state of the changed tasks; later changes of them are applied again.

        Returns the versions that aliases mean from now on, as `Directory.show`.
        """
        first = self._position.seq + 1
        if not changes or [change.seq for change in changes] != list(range(first, first + len(changes))):
            # A gap, or changes behind another one than the last one shown: an older registry was restored and has been
            # changed since.
            return self._load()
        aliased = self._reconcile(_numbers_of(changes), changes)
        self._shown_at = changes[-1].at
        self._position.move(changes[-1].seq)
        for change in changes:
            self._told(change)
        return aliased

    def _reconcile(
        self,
        tasks: Mapping[str, Collection[int] | None],
        changes: Sequence[Change] = (),
        known: Sequence[VersionEntry] = (),
    ) -> dict[Version, bool]:
        """Makes tasks equal to their registered state: all versions, or those with these numbers, and the aliases.

        `known` entries have their manifests, as those of uploads among the changes.
        """
        # Read everything before showing anything: if the registry cannot be read, the same changes are read again.
        registered = {task: self._feed.task(task, numbers) for task, numbers in tasks.items()}
        # Any change of such a task: the deletion of its last version ends its keeping, too.
        named = {change.task for change in changes}
        of_samples = any(change.action == Action.SET_SAMPLES for change in changes)
        if of_samples or not named.isdisjoint(self._directory.keepings):
            self._directory.keep(self._feed.keepings())
        known = [*known, *(change.entry for change in changes if change.entry)]
        records = {(record.task, record.version, record.digest): record for record in known}
        aliased: dict[Version, bool] = {}
        for task, (entries, aliases) in registered.items():
            if not entries and tasks[task] is not None:
                # A later change deletes the task, or one of these deletes its last version.
                deleted = (c.version for c in changes if c.task == task and c.action == Action.DELETE_VERSION)
                self._directory.show(task, (), None, set(filter(None, deleted)))
            else:
                best = [records.get((task, entry.version, entry.digest), entry) for entry in entries]
                aliased |= self._show(task, best, aliases, tasks[task])
        return aliased

    def _load(self) -> dict[Version, bool]:
        aliased: dict[Version, bool] = {}
        with collecting_nothing():
            snapshot, by_task = self._feed.snapshot(), attrgetter("task")
            gone = {version.entry.task for version in self._directory.versions()}
            # The database may order names by the rules of a language.
            for task, entries in groupby(sorted(snapshot.entries, key=by_task), by_task):
                gone.discard(task)
                aliased |= self._show(task, list(entries), snapshot.aliases.get(task, {}), None)
            for task in gone:
                self._show(task, (), {}, None)
            self._directory.keep(snapshot.keepings)
        self._shown_at = snapshot.last.at
        self._position.move(snapshot.last.seq)
        return aliased

    def _show(
        self, task: str, entries: Iterable[VersionEntry], aliases: Mapping[str, Alias], numbers: Collection[int] | None
    ) -> dict[Version, bool]:
        return self._directory.show(task, [self._version(entry) for entry in entries], aliases, numbers)

    def _version(self, entry: VersionEntry) -> Version:
        offer = self._offer
        if offer is None or offer.taken or (offer.task, offer.digest) != (entry.task, entry.digest):
            return Version(entry)
        # The row belongs to the directory from here on.
        offer.taken = True
        return Version(entry, offer.slot, offer.row_bytes)


def _numbers_of(changes: Sequence[Change]) -> dict[str, set[int] | None]:
    numbers_of_tasks: dict[str, set[int] | None] = {}
    for change in changes:
        if change.action in (Action.RENAME_TASK, Action.DELETE_TASK):
            numbers_of_tasks |= dict.fromkeys(filter(None, (change.task, change.name)))
        elif change.task and (numbers := numbers_of_tasks.setdefault(change.task, set())) is not None:
            numbers |= {change.version} if change.version else set()
    return numbers_of_tasks
