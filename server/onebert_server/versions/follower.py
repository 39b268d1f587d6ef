"""Follows the registry's changes and applies them to the directory, which nobody else changes; own changes, too."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from onebert_server.garbage import collecting_nothing
from onebert_server.versions.directory import Directory
from onebert_server.versions.presence import Presence
from onebert_server.versions.version import Version
from onebert_store.errors import NotFound, OneBertError
from onebert_store.registry.feed import Feed
from onebert_store.registry.records import Action, Alias, Change, Snapshot, VersionEntry

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
        renamed: is told of each task's old and new name.
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
        # Deleted versions, by task, that the directory still has to show.
        self._deleted: dict[str, set[int]] = {}
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
            # A deleted version that is still to be shown means that later changes were committed when these were read.
            while self._position.seq < last.seq or self._deleted:
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
        with self._applying:
            try:
                known = self._directory.version(entry.task, entry.version)
            except NotFound:
                return
            if known.entry.digest == offer.digest and not offer.taken:
                self._directory.publish(offer.version(entry), {})

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
        for change in changes:
            if change.seq != self._position.seq + 1:
                changes = ()
                break
            self._apply_one(change)
            self._shown_at = change.at
            self._position.move(change.seq)
        if not changes:
            # Some are missing, or follow on another change than the one shown last: an older registry was put back,
            # and has been changed since.
            self._load()

    def _apply_one(self, change: Change) -> None:
        task, alias, number = change.task or "", change.alias or "", change.version or 0
        match change.action:
            # Without its entry it was deleted since, and its aliases moved on before: what follows says so.
            case Action.UPLOAD if change.entry is not None:
                self._publish(change.entry, change.alias)
            case Action.PROMOTE:
                self._promote(task, alias, number, change.before)
                self._retire_deleted(task)
            case Action.DELETE_ALIAS:
                self._directory.set_alias(task, alias, None)
                self._retire_deleted(task)
            case Action.DELETE_VERSION:
                self._deleted.setdefault(task, set()).add(number)
                self._retire_deleted(task)
            case Action.DELETE_TASK:
                self._deleted.pop(task, None)
                self._directory.retire_task(task)
            case Action.RENAME_TASK if change.name is not None:
                self._rename(task, change.name)

    def _publish(self, entry: VersionEntry, alias: str | None) -> None:
        offer = self._offers.get((entry.task, entry.digest))
        # A change that renamed the task has brought it already.
        if self._shows(entry) and not alias and not offer:
            return
        version = offer.version(entry) if offer and not offer.taken else Version(entry)
        self._directory.publish(version, {alias: Alias(entry.version)} if alias else {})
        if alias:
            self._directory.fetch(version)

    def _rename(self, task: str, name: str) -> None:
        """Shows a task by its new name, with what was uploaded under the old one and could not be read since.

        That is as of now: what is changed later comes again as changes, and ends where it is.
        """
        self._directory.retire_task(name)
        self._directory.rename(task, name)
        self._renamed(task, name)
        if deleted := self._deleted.pop(task, None):
            self._deleted[name] = deleted
        entries, aliases = self._feed.task(name)
        # Without versions it was deleted or renamed since, which follows.
        if not entries:
            return
        for entry in entries:
            if not self._shows(entry):
                self._directory.publish(Version(entry), {})
        self._directory.set_aliases(name, aliases)
        # A name may have been another task's in between, whose versions came along with an earlier change of names.
        for stranger in self._directory.task(name).versions.keys() - {entry.version for entry in entries}:
            self._directory.retire(name, stranger)
        for number in {at.version for at in aliases.values()}:
            self._directory.fetch(self._directory.version(name, number))
        self._retire_deleted(name)

    def _shows(self, entry: VersionEntry) -> bool:
        try:
            return self._directory.version(entry.task, entry.version).entry.digest == entry.digest
        except NotFound:
            return False

    def _promote(self, task: str, alias: str, number: int, before: int | None) -> None:
        try:
            version = self._directory.version(task, number)
        except NotFound:
            return  # as above
        at = self._directory.task(task, most=0).aliases.get(alias)
        # An alias that was moved to where it was keeps the place where it was before that. Where it was, the change
        # says: the directory does not where the move before this one was to a version that is gone.
        previous = at.previous if at and before == number else before
        self._directory.set_alias(task, alias, Alias(number, previous))
        # Whoever moved the alias has loaded the version; this replica has not, and is about to be asked for it.
        self._directory.fetch(version)

    def _retire_deleted(self, task: str) -> None:
        """Forgets the deleted versions of a task, except those that an alias of the directory points at.

        No alias pointed at a version when it was deleted. Where one does here it had moved on to a version that was
        deleted since, and whose upload is read without its entry. Until it is read where the alias is now, the version
        from before answers for it, rather than nothing.
        """
        deleted = self._deleted.pop(task, None)
        if not deleted:
            return
        try:
            aliased = {at.version for at in self._directory.task(task, most=0).aliases.values()}
        except NotFound:
            return
        for number in deleted - aliased:
            self._directory.retire(task, number)
        if kept := deleted & aliased:
            self._deleted[task] = kept

    def _load(self) -> None:
        with collecting_nothing():
            snapshot = self._feed.snapshot()
            if self._directory.counts()["tasks"]:
                self._become(snapshot)
            else:
                self._directory.fill(snapshot)
        self._deleted.clear()
        self._shown_at = snapshot.last.at
        self._position.move(snapshot.last.seq)

    def _become(self, snapshot: Snapshot) -> None:
        known = {(one.entry.task, one.entry.version): one for one in self._directory.versions()}
        for entry in snapshot.entries:
            version = known.pop((entry.task, entry.version), None)
            if version is None or version.entry.digest != entry.digest:
                self._directory.publish(Version(entry), {})
        for task in dict.fromkeys(entry.task for entry in snapshot.entries):
            self._directory.set_aliases(task, snapshot.aliases.get(task, {}))
        for version in known.values():
            self._directory.retire(version.entry.task, version.entry.version)
