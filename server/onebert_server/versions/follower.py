"""Follows the registry's changes and applies them to the directory, which nobody else changes; own changes, too."""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from itertools import groupby

from onebert_server.garbage import collecting_nothing
from onebert_server.versions.directory import Directory
from onebert_server.versions.presence import Presence
from onebert_server.versions.version import TaskEntry, Version
from onebert_store.errors import NotFound, OneBertError
from onebert_store.registry.feed import Feed
from onebert_store.registry.records import Action, Alias, Change, VersionEntry

logger = logging.getLogger("onebert.follower")

# Seconds between two looks at the feed where nothing says that there is something new.
LOOK_EVERY = 0.5
# Seconds for which it is listened at once: a replica that ends waits for that.
HEARD_FOR = 0.5
# Changes that are read at once.
READ_TOGETHER = 500


@dataclass(eq=False)
class Offer:
    """A folded and proved row for a version that is about to be registered; `taken` once the directory has it."""

    task: str
    digest: str
    slot: int
    row_bytes: int
    taken: bool = False

    def version(self, entry: VersionEntry) -> Version:
        """The version with this row, which is the directory's from here on."""
        self.taken = True
        return Version(entry, self.slot, self.row_bytes)


class Follower:
    """Brings the directory to where the registry is; any thread may ask for that, and one does again and again.

    Args:
        feed: of the registry.
        directory: what requests resolve against; until `load` it shows nothing.
        presence: tells other replicas how far this one is; None where there are no others.
        renamed: called with a task's old and new name when it is renamed.
        clock: seconds, as `time.monotonic` gives them.

    Attributes:
        looked_at: when the feed was last looked at with success, in seconds of `clock`; the directory shows everything
            that was committed before.
    """

    def __init__(
        self,
        feed: Feed,
        directory: Directory,
        presence: Presence | None = None,
        renamed: Callable[[str, str], None] = lambda *_: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.looked_at = clock()
        self._feed = feed
        self._directory = directory
        self._position = directory.position
        self._presence = presence
        self._renamed = renamed
        self._clock = clock
        # Held while changes are read and applied: each is applied once, in its order.
        self._applying = threading.Lock()
        # When the change was made up to which the directory shows the registry; None where there is none.
        self._shown_at: datetime | None = None
        self._offers: dict[tuple[str, str], Offer] = {}
        self._failing = False
        self._ended = threading.Event()
        self._threads = [
            threading.Thread(target=work, name=f"onebert-{name}", daemon=True)
            for work, name in ((self._run, "follower"), (self._listen, "listener"))
        ]

    def start(self) -> None:
        """Begins to follow; what was changed while this replica loaded is shown when it returns.

        Raises:
            StorageUnavailable, StoreCorrupt: the registry cannot be read.
        """
        # In this order: who waits for all replicas waits for this one from now on, or has made a change before.
        self._report()
        self.catch_up()
        for thread in self._threads:
            thread.start()

    @property
    def dead(self) -> bool:
        """Whether the thread has ended although nobody closed the follower."""
        follower = self._threads[0]
        return follower.ident is not None and not follower.is_alive() and not self._ended.is_set()

    @property
    def age(self) -> float:
        """How old what the directory shows may be, in seconds."""
        return max(0.0, self._clock() - self.looked_at)

    def close(self) -> None:
        """Follows no longer."""
        self._ended.set()
        self._position.wanted.set()
        for thread in self._threads:
            if thread.is_alive():
                thread.join()
        if self._presence is not None:
            with suppress(OneBertError):  # it counts as dead some seconds later
                self._presence.leave()

    def load(self) -> None:
        """Brings the directory to what is registered, whatever it shows now.

        Raises:
            StorageUnavailable, StoreCorrupt: the registry cannot be read.
        """
        with self._applying:
            now = self._clock()
            self._load()
            self.looked_at = now

    def catch_up(self) -> None:
        """Applies everything that was committed until now.

        Raises:
            StorageUnavailable, StoreCorrupt: the registry cannot be read; the directory stays where it is.
        """
        with self._applying:
            self._position.begin_look()
            now = self._clock()
            last = self._feed.last()
            if last.seq < self._position.seq or (last.seq == self._position.seq and last.at != self._shown_at):
                # An older registry was put back, and the numbers of what was changed since are used again.
                self._load()
            while self._position.seq < last.seq:
                self._apply(self._feed.read(self._position.seq, READ_TOGETHER, self._shown_at))
            self.looked_at = now
            self._position.end_look()

    def reach(self, seq: int) -> None:
        """Returns when the directory shows a change that was committed before.

        Raises:
            StorageUnavailable, StoreCorrupt: the registry cannot be read; the change is applied later.
        """
        if self._position.seq < seq:
            self.catch_up()

    def offer(self, offer: Offer) -> None:
        """Has a row ready for a version that is about to be registered; to be withdrawn, taken or not."""
        with self._applying:
            self._offers[offer.task, offer.digest] = offer

    def withdraw(self, offer: Offer) -> None:
        """Ends an offer; where it is not `taken` then, its row is the caller's again."""
        with self._applying:
            self._offers.pop((offer.task, offer.digest), None)

    def heal(self, offer: Offer, entry: VersionEntry) -> None:
        """Puts a row in place of what is known of a registered version; nothing happens where that version is gone."""
        with self._applying, suppress(NotFound):
            known = self._directory.version(entry.task, entry.version)
            if known.entry.digest == offer.digest and not offer.taken:
                aliases = self._directory.task(entry.task, most=0).aliases
                self._directory.show(entry.task, [offer.version(entry)], (), aliases)

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
            # Without this thread the replica would fall behind, so it outlives even a fault of this code.
            except Exception:
                logger.exception("the follower goes on after an unexpected error")
            self._position.wanted.wait(LOOK_EVERY)

    def _listen(self) -> None:
        """Has the feed looked at as soon as the database tells of a change; without that it is looked at in turn."""
        while not self._ended.is_set():
            try:
                with self._feed.listening() as listener:
                    while listener is not None and not self._ended.is_set():
                        if listener.wait(HEARD_FOR):
                            self._position.wanted.set()
                if listener is None:
                    return
            except OneBertError:
                # The thread beside this one says so in the log.
                self._ended.wait(LOOK_EVERY)
            # As in `_run`.
            except Exception:
                logger.exception("the follower listens again after an unexpected error")
                self._ended.wait(LOOK_EVERY)

    def _report(self) -> None:
        if self._presence is not None:
            self._presence.report(self._position.seq)

    def _apply(self, changes: Sequence[Change]) -> None:
        """Shows the tasks that the changes are about as they are now; later changes of them will come again."""
        first = self._position.seq + 1
        if not changes or [change.seq for change in changes] != list(range(first, first + len(changes))):
            # Some are missing, or follow on another change than the one shown last: an older registry was put back,
            # and has been changed since.
            self._load()
            return
        # All is read before anything is shown: where the registry cannot be read, the same changes are read again.
        numbers = _numbers_of(changes)
        found = {task: self._feed.task(task, numbers[task]) for task in numbers}
        for change in changes:
            # What lies in memory stays there.
            if change.action == Action.RENAME_TASK and change.task and change.name:
                self._directory.rename(change.task, change.name)
                self._renamed(change.task, change.name)
        # With their manifests.
        uploads = {(one.task, one.version, one.digest): one for change in changes if (one := change.entry)}
        for task, (entries, aliases) in found.items():
            if not entries and numbers[task] is not None:
                # A later change renames or deletes the task, or its last version is deleted here.
                deletions = (one for one in changes if one.task == task and one.action == Action.DELETE_VERSION)
                self._forget(task, {one.version for one in deletions})
                continue
            records = [uploads.get((task, entry.version, entry.digest), entry) for entry in entries]
            self._show(task, records, aliases, numbers[task])
        self._shown_at = changes[-1].at
        self._position.move(changes[-1].seq)

    def _forget(self, task: str, deleted: Collection[int | None]) -> None:
        with suppress(NotFound):
            aliases = self._directory.task(task, most=0).aliases
            left = {alias: at for alias, at in aliases.items() if at.version not in deleted}
            self._directory.show(task, [], filter(None, deleted), left)

    def _show(
        self, task: str, entries: Sequence[VersionEntry], aliases: Mapping[str, Alias], numbers: Collection[int] | None
    ) -> None:
        """Makes a task that which is registered.

        Args:
            task: its name.
            entries: its versions, those that aliases point at among them.
            aliases: all of its aliases.
            numbers: of the versions that `entries` would hold if they were there; None is all.
        """
        try:
            known = self._directory.task(task, most=None if numbers is None else 0)
        except NotFound:
            known = TaskEntry(task)
        gone = set(known.versions if numbers is None else numbers) - {entry.version for entry in entries}
        new = [version for entry in entries if (version := self._new(entry))]
        self._directory.show(task, new, gone, aliases)
        # Whoever moved an alias has loaded the version; this replica has not, and is about to be asked for it.
        before = {alias: at.version for alias, at in known.aliases.items()}
        for number in {at.version for alias, at in aliases.items() if before.get(alias) != at.version}:
            self._directory.fetch(self._directory.version(task, number))

    def _new(self, entry: VersionEntry) -> Version | None:
        """A version that is not shown, with the row that is offered for it, if one is."""
        offer = self._offers.get((entry.task, entry.digest))
        if offer and not offer.taken:
            return offer.version(entry)
        with suppress(NotFound):
            if self._directory.version(entry.task, entry.version).entry.digest == entry.digest:
                return None
        return Version(entry)

    def _load(self) -> None:
        with collecting_nothing():
            snapshot = self._feed.snapshot()
            if shown := {version.entry.task for version in self._directory.versions()}:
                entries = {task: list(group) for task, group in groupby(snapshot.entries, lambda one: one.task)}
                for task in shown | entries.keys():
                    self._show(task, entries.get(task, []), snapshot.aliases.get(task, {}), None)
            else:
                self._directory.fill(snapshot)
        self._shown_at = snapshot.last.at
        self._position.move(snapshot.last.seq)


def _numbers_of(changes: Sequence[Change]) -> dict[str, set[int] | None]:
    """Which tasks are not as they were, with the numbers of their versions that are not, or None for all."""
    found: dict[str, set[int] | None] = {}
    for change in changes:
        if change.action in (Action.RENAME_TASK, Action.DELETE_TASK):
            found |= dict.fromkeys(filter(None, (change.task, change.name)))
        elif change.task and (numbers := found.setdefault(change.task, set())) is not None:
            numbers |= {change.version} if change.version else set()
    return found
