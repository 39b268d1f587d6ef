"""How far each version is, which lie in memory, and who uses which; knows no names."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from math import ceil

from onebert_server.access.principal import RESERVED
from onebert_server.versions.version import State, Version
from onebert_store.errors import VersionUnavailable
from onebert_store.registry.records import VersionRecord


class States:
    """The state machine of versions; thread-safe and quick. `Directory` adds their names, under the same lock.

    A request pins what it resolved until it is answered. A pinned version is neither evicted nor, when it is retired,
    given up; a version that is not resident is loaded because it is pinned.

    Args:
        release: called with the slot of a version that was retired, once nobody uses it.
        load: called with every version that is to be loaded, and with the principal who asked for it; again for each
            other principal who asks meanwhile. Loading ends with `loaded`, `failed`, `unloaded` or `give_up_unwanted`.
        clock: seconds, as `time.monotonic` gives them.
    """

    def __init__(
        self, release: Callable[[int], None], load: Callable[[Version, str], None], clock: Callable[[], float]
    ) -> None:
        self._release = release
        self._load = load
        self._clock = clock
        self._lock = threading.Lock()
        # Notified when a version may have become one that `evict` takes.
        self._unused_now = threading.Condition(self._lock)
        # Those in the bank, the least recently used first.
        self._residents: OrderedDict[Version, None] = OrderedDict()
        # Kept so that neither a scrape of the metrics nor a retry walks ten thousand versions under the lock that every
        # request takes. `_note` keeps the two sets.
        self._unavailable: set[Version] = set()
        self._damaged: set[Version] = set()

    def unpin(self, versions: Sequence[Version]) -> None:
        """Gives pins back; callable from any thread."""
        with self._lock:
            for version in versions:
                version.pins -= 1
            self._unused_now.notify_all()
            unused = [slot for version in dict.fromkeys(versions) if (slot := self._unused(version)) is not None]
        for slot in unused:
            self._release(slot)

    def awaited(self, versions: Sequence[Version], principal: str) -> list[Future[None]]:
        """What pinned versions still wait for: done when they are resident, or failed.

        Raises:
            VersionUnavailable: one of them could not be loaded since it was pinned.
        """
        with self._lock:
            for version in versions:
                if version.state is State.UNAVAILABLE:
                    raise self._refusal(version)
            # The bank may have been full when a version was to be loaded, and have room for the version by now.
            cold = [one for one in dict.fromkeys(versions) if one.state in (State.REGISTERED, State.EVICTED)]
            for version in cold:
                self._begin_loading(version)
            loading = [version.loading for version in dict.fromkeys(versions) if version.loading is not None]
        for version in cold:
            self._load(version, principal)
        return loading

    def know(self, version: Version, record: VersionRecord, row_bytes: int = 0) -> None:
        """Keeps the manifest of a version that is not loaded, and what its row takes where that is known."""
        with self._lock:
            version.learn(record)
            version.row_bytes = row_bytes or version.row_bytes

    def begin_loading(self, version: Version) -> bool:
        """Marks a version that is neither resident nor being loaded; whether it was one."""
        with self._lock:
            if version.retired or version.state in (State.RESIDENT, State.LOADING):
                return False
            self._begin_loading(version)
            return True

    def fetch(self, version: Version) -> None:
        """Has a version loaded that requests will ask for soon; nothing happens where it is, or cannot be tried yet."""
        with self._lock:
            if version.retired or version.state not in (State.REGISTERED, State.EVICTED):
                return
            self._begin_loading(version)
            version.tried_again = True
        self._load(version, RESERVED)

    def try_again(self) -> None:
        """Has those versions loaded whose next try has come, whether or not anybody asks for them."""
        now = self._clock()
        with self._lock:
            due = [one for one in self._unavailable if one.next_try is not None and one.next_try <= now]
            for version in due:
                self._begin_loading(version)
                version.tried_again = True
        for version in due:
            self._load(version, RESERVED)

    def give_up_unwanted(self, version: Version) -> bool:
        """Ends the loading of a version that nobody has pinned any more; whether it did.

        A version that the server tries again by itself is wanted, although nobody has pinned it.
        """
        with self._lock:
            if version.pins or version.tried_again or version.state is not State.LOADING:
                return False
            version.state = State.EVICTED if version.proved else State.REGISTERED
            version.loading = None
            self._note(version)
            return True

    def loaded(self, version: Version, slot: int, record: VersionRecord) -> None:
        """A version's row lies in a slot of the bank, and was proved; the record may come from the file itself."""
        with self._lock:
            version.state, version.held_slot = State.RESIDENT, slot
            version.learn(record)
            version.proved, version.failures, version.damaged = True, 0, False
            version.reason = version.next_try = None
            self._note(version)
            if not version.retired:
                self._residents[version] = None
                self._unused_now.notify_all()
            unused = self._unused(version)
            loading, version.loading = version.loading, None
        if loading:
            loading.set_result(None)
        self._give_back(unused)

    def failed(self, version: Version, reason: str, next_try: float | None, damaged: bool = False) -> None:
        """A version could not be loaded: requests for it are refused with the reason until it is tried again."""
        with self._lock:
            version.state, version.reason, version.next_try = State.UNAVAILABLE, reason, next_try
            version.failures += 1
            version.damaged = damaged
            self._note(version)
            error = self._refusal(version)
            loading, version.loading = version.loading, None
        if loading:
            loading.set_exception(error)

    def unloaded(self, version: Version, error: Exception) -> None:
        """A version was not loaded, for reasons that have nothing to do with it: those who wait are refused."""
        with self._lock:
            version.state = State.EVICTED if version.proved else State.REGISTERED
            version.next_try = None
            if not version.damaged:
                version.reason = None
            self._note(version)
            loading, version.loading = version.loading, None
        if loading:
            loading.set_exception(error)

    def evict(self) -> int | None:
        """Takes the row from the version that was not used for the longest time and that nobody uses now.

        Returns:
            Its slot, which is the caller's from here on; None where every resident version is in use.
        """
        with self._lock:
            version = next((one for one in self._residents if not one.pins), None)
            if version is None:
                return None
            del self._residents[version]
            slot, version.held_slot, version.state = version.held_slot, None, State.EVICTED
            return slot

    def wait_for_unused(self, seconds: float) -> None:
        """Returns when a version may have become one that `evict` takes, or after so many seconds."""
        with self._lock:
            if all(one.pins for one in self._residents):
                self._unused_now.wait(seconds)

    def mark_damaged(self, version: Version, reason: str | None) -> None:
        """What a look at a version's stored file found: what is wrong with it, or None."""
        with self._lock:
            if version.state is not State.UNAVAILABLE:
                version.damaged, version.reason = reason is not None, reason
                self._note(version)

    def _refusal(self, version: Version) -> VersionUnavailable:
        entry, again = version.entry, version.next_try
        why = f"version {entry.version} of {entry.task} cannot be loaded: {version.reason}"
        return VersionUnavailable(why, None if again is None else max(1, ceil(again - self._clock())))

    def _pin(self, versions: Sequence[Version]) -> list[Version]:
        """Pins; returns those that are not in memory yet."""
        cold: dict[Version, None] = {}
        for version in versions:
            version.pins += 1
            if version.state is State.RESIDENT:
                self._residents.move_to_end(version)
            else:
                if version.state is not State.LOADING:
                    self._begin_loading(version)
                cold[version] = None
        return list(cold)

    def _begin_loading(self, version: Version) -> None:
        version.state, version.loading, version.tried_again = State.LOADING, Future(), False
        self._note(version)

    def _note(self, version: Version) -> None:
        """Counts a version whose state, damage or registration has changed."""
        unavailable = version.state is State.UNAVAILABLE
        for counted, versions in ((unavailable, self._unavailable), (version.damaged, self._damaged)):
            if counted and not version.retired:
                versions.add(version)
            else:
                versions.discard(version)

    def _retire(self, version: Version) -> int | None:
        version.retired = True
        self._residents.pop(version, None)
        self._note(version)
        return self._unused(version)

    def _unused(self, version: Version) -> int | None:
        """The slot of a retired version that nobody uses any more, once."""
        if not version.retired or version.pins or version.held_slot is None:
            return None
        slot, version.held_slot = version.held_slot, None
        return slot

    def _give_back(self, slot: int | None) -> None:
        if slot is not None:
            self._release(slot)
