"""The states of versions, the resident ones, and the pins of requests that wait for others; knows no names."""

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from math import ceil

from onebert_server.access.principal import RESERVED
from onebert_server.engine.host import Host, Slot
from onebert_server.versions.version import Held, State, Version
from onebert_store.errors import VersionUnavailable
from onebert_store.registry.records import VersionRecord

# Seconds between two loadings of a shadow that has left memory, for which there may be no room.
SPARE_EVERY = 30.0
# The principal of a loading that evicts nothing.
NOBODY = ""
COLD = (State.REGISTERED, State.EVICTED)


class States:
    """The state machine of versions; thread-safe and quick. `Directory` adds their names, under the same lock.

    A request whose versions are not all in memory pins them until they are; pinning a version that is not resident
    loads it. A pinned version is not evicted, and neither is one whose row the engine uses; see `Uses`.

    Args:
        hosts: in their order at the engine.
        load: called, under the lock, with every version to load and the principal that asked for it; again for each
            other principal that asks meanwhile. Loading ends with `loaded`, `failed`, `unloaded` or `give_up_unwanted`.
    """

    def __init__(self, hosts: Sequence[Host], load: Callable[[Version, str], None], clock: Callable[[], float]) -> None:
        self.hosts = hosts
        self._load = load
        self._clock = clock
        self._lock = threading.Lock()
        # All banks share them. A thread that holds `_lock` may take `_using`, and not the other way.
        self._using, self._unused_now = hosts[0].bank.using, hosts[0].bank.unused
        # The versions in the banks.
        self._residents: dict[Slot, Version] = {}
        # Kept by `_note`, so that neither a scrape of the metrics nor a retry walks ten thousand versions under the
        # lock that every request takes.
        self._unavailable: set[Version] = set()

    def unpin(self, pinned: Iterable[Version], stay: float = 0.0) -> None:
        """Gives pins back; any thread may call it. The versions stay for some more seconds, or until they are used."""
        until = time.monotonic() + stay
        with self._lock, self._using:
            for version in pinned:
                version.pins -= 1
                if version.held_slot is not None:
                    version.slot.host.bank.evictable[version.slot.number] = not version.pins
                    self._use([version], until)
            self._unused_now.notify_all()

    def awaited(self, pinned: Iterable[Version], principal: str) -> list[Future[None]]:
        """Returns the futures of pinned versions that still load; raises VersionUnavailable if one has failed.

        Nobody waits for a retired version: what means it must be resolved once more.
        """
        # A pinned version in memory stays there, so this needs no lock.
        versions = [v for v in dict.fromkeys(pinned) if v.state is not State.RESIDENT and not v.retired]
        if not versions:
            return []
        with self._lock:
            for version in versions:
                if version.state is State.UNAVAILABLE:
                    raise self._refusal(version)
            for version in versions:
                # The bank may have been full when it was due for loading, and may have room by now.
                if version.state in COLD:
                    self._want(version, principal)
            return [version.loading for version in versions if version.loading is not None]

    def know(self, version: Version, record: VersionRecord, row_bytes: int = 0) -> None:
        """Keeps the manifest of a version that is not loaded, and the bytes of its row if they are known."""
        with self._lock:
            version.learn(record)
            version.row_bytes = row_bytes or version.row_bytes

    def begin_loading(self, version: Version) -> bool:
        """Marks a version as loading; returns False if it is retired, resident or already loading."""
        with self._lock:
            if version.retired or version.state in (State.RESIDENT, State.LOADING):
                return False
            self._begin_loading(version)
            return True

    def fetch(self, versions: Mapping[Version, bool]) -> None:
        """Loads versions before requests ask for them, only from the states registered and evicted.

        Others are evicted only for a version that answers: True. A shadow, False, is loaded if there is room.
        """
        with self._lock:
            for version, answers in versions.items():
                if version.state in COLD and not version.retired:
                    self._fetch(version, answers)

    def try_again(self) -> None:
        """Loads those versions whose next try is due, even if no request asks for them."""
        now = self._clock()
        with self._lock:
            for version in [v for v in self._unavailable if v.next_try is not None and v.next_try <= now]:
                self._fetch(version, answers=not version.spare)

    def give_up_unwanted(self, version: Version) -> bool:
        """Stops a loading without pins, unless the server itself wants it; returns whether it did."""
        with self._lock:
            if version.pins or version.tried_again or version.state is not State.LOADING:
                return False
            self._unload(version)
            return True

    def loaded(self, version: Version, slot: Slot, record: VersionRecord) -> None:
        """Records a checked row in a slot of a bank; the record may come from the file itself."""
        with self._lock:
            version.learn(record)
            version.proved, version.failures = True, 0
            version.reason = version.next_try = None
            if retired := version.retired:
                version.state = State.EVICTED
            else:
                version.held_slot = slot
                # Last: requests read the state without the lock, and after it all else.
                version.state = State.RESIDENT
                self._add_resident(version)
            self._end_loading(version)
        if retired:
            slot.release()

    def failed(self, version: Version, reason: str, next_try: float | None) -> None:
        """Records a failed load: requests are refused with the reason until the next try."""
        with self._lock:
            version.state, version.reason, version.next_try = State.UNAVAILABLE, reason, next_try
            version.failures += 1
            self._end_loading(version, self._refusal(version))

    def unloaded(self, version: Version, error: Exception) -> None:
        """Ends a loading for reasons that have nothing to do with the version: its waiting requests get the error."""
        with self._lock:
            self._unload(version, error)

    def evict(self, host: Host | None = None) -> Slot | None:
        """Evicts the least recently used version without pins or uses; returns its slot, now the caller's, or None.

        With a host it prefers that host's versions.
        """
        with self._lock, self._using:
            oldest = {other: used for other in self.hosts if (used := other.bank.oldest()) is not None}
            if not oldest:
                return None
            chosen = host if host in oldest else min(oldest, key=lambda other: oldest[other][0])
            slot = Slot(chosen, oldest[chosen][1])
            chosen.bank.withdraw(slot.number)
            version = self._residents.pop(slot)
            version.held_slot, version.state = None, State.EVICTED
            return slot

    def wait_for_unused(self, seconds: float) -> None:
        """Waits, at most so many seconds, until a version may have become one that `evict` takes."""
        with self._using:
            if all(host.bank.oldest() is None for host in self.hosts):
                self._unused_now.wait(seconds)

    # The methods below are called under the lock.

    def _refusal(self, version: Version) -> VersionUnavailable:
        entry, again = version.entry, version.next_try
        why = f"version {entry.version} of {entry.task} cannot be loaded: {version.reason}"
        return VersionUnavailable(why, None if again is None else max(1, ceil(again - self._clock())))

    def _pin(self, versions: Iterable[Version], principal: str) -> None:
        for version in versions:
            version.pins += 1
            if version.state is State.RESIDENT:
                with self._using:
                    version.slot.host.bank.evictable[version.slot.number] = False
            else:
                self._want(version, principal)

    def _use(self, versions: Iterable[Version], now: float) -> None:
        with self._using:
            for version in versions:
                used, number = version.slot.host.bank.used, version.slot.number
                used[number] = max(used[number], now)

    def _want(self, version: Version, principal: str) -> None:
        if version.state is not State.LOADING:
            self._begin_loading(version)
        self._load(version, principal)

    def _fetch(self, version: Version, answers: bool) -> None:
        self._begin_loading(version)
        version.tried_again, version.spare = answers, not answers
        self._load(version, RESERVED if answers else NOBODY)

    def _renew(self, versions: Iterable[Version]) -> None:
        """Has everyone who remembers what references to these versions mean resolve them again."""
        for version in versions:
            if version.held_slot is not None:
                version.held_slot.host.bank.renew(version.held_slot.number)

    def _in_memory(self, versions: Held) -> Held:
        """Leaves out shadows that are not in memory; counts them, and loads them now and then, if there is room."""
        if len(versions) == 1:
            return versions
        answering, *shadows = versions
        for shadow in shadows:
            if shadow.state is State.RESIDENT:
                continue
            self._miss(answering, shadow)
            if shadow.state in COLD and self._clock() >= shadow.spare_again:
                shadow.spare_again = self._clock() + SPARE_EVERY
                self._fetch(shadow, answers=False)
        resident = (version for version in shadows if version.state is State.RESIDENT)
        return Held((answering, *resident), versions.payer, versions.lasting)

    def _miss(self, answering: Version, shadow: Version) -> None:
        number = answering.entry.version
        shadow.missed = {**(shadow.missed or {}), number: (shadow.missed or {}).get(number, 0) + 1}

    def _begin_loading(self, version: Version) -> None:
        version.state, version.loading, version.tried_again = State.LOADING, Future(), False
        self._note(version)

    def _end_loading(self, version: Version, error: Exception | None = None) -> None:
        self._note(version)
        loading, version.loading = version.loading, None
        if loading and error:
            loading.set_exception(error)
        elif loading:
            loading.set_result(None)

    def _unload(self, version: Version, error: Exception | None = None) -> None:
        version.state = State.EVICTED if version.proved else State.REGISTERED
        version.reason = version.next_try = None
        self._end_loading(version, error)

    def _note(self, version: Version) -> None:
        if version.state is State.UNAVAILABLE and not version.retired:
            self._unavailable.add(version)
        else:
            self._unavailable.discard(version)

    def _add_resident(self, version: Version) -> None:
        slot = version.slot
        self._residents[slot] = version
        with self._using:
            slot.host.bank.evictable[slot.number] = not version.pins
            self._unused_now.notify_all()

    def _retire(self, version: Version) -> Slot | None:
        """Ends a version's loading, or withdraws its row; returns its slot, which the caller releases.

        Nothing that comes from now on is answered by it.
        """
        version.retired = True
        slot, version.held_slot = version.held_slot, None
        if slot is not None:
            del self._residents[slot]
            slot.host.bank.withdraw(slot.number)
        if version.state in (State.LOADING, State.RESIDENT):
            self._unload(version)
        self._note(version)
        return slot
