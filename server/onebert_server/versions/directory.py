"""What requests resolve against: tasks, aliases and versions in memory, how far each version is, and who uses which."""

import heapq
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from math import ceil

from onebert_server.principal import RESERVED, Principal
from onebert_server.versions.facts import Facts
from onebert_server.versions.version import State, TaskEntry, Version
from onebert_store.errors import AliasNotFound, InvalidInput, VersionUnavailable
from onebert_store.registry.names import LIVE, TaskRef, no_such_task, parse_ref
from onebert_store.registry.records import Alias, VersionRecord


class Directory:
    """Thread-safe and quick: nothing here reads a disk or computes.

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
        self._tasks: dict[str, TaskEntry] = {}
        # Those in the bank, the least recently used first.
        self._residents: OrderedDict[Version, None] = OrderedDict()
        # Kept beside the tasks, so that neither a scrape of the metrics nor a retry walks ten thousand versions under
        # the lock that every request takes. `_note` keeps the two sets.
        self._num_versions = 0
        self._unavailable: set[Version] = set()
        self._damaged: set[Version] = set()

    def publish(self, version: Version, aliases: Mapping[str, Alias]) -> None:
        """Makes a version resolvable in place of what had its number, and its task's aliases those given."""
        entry = version.entry
        with self._lock:
            task = self._tasks.setdefault(entry.task, TaskEntry(entry.task))
            before = task.versions.get(entry.version)
            task.versions[entry.version] = version
            task.aliases = dict(aliases)
            if version.state is State.RESIDENT:
                self._residents[version] = None
                self._unused_now.notify_all()
            self._num_versions += 1
            self._note(version)
            unused = self._retire(before) if before else None
        self._give_back(unused)

    def set_alias(self, name: str, alias: str, at: Alias | None) -> None:
        """Moves an alias, or forgets it (None); requests pinned before stay where they are.

        Nothing happens where there is no such task, or no such version, or no such alias to forget.
        """
        with self._lock:
            task = self._tasks.get(name)
            if task is None:
                return
            if at is None:
                task.aliases.pop(alias, None)
            elif at.version in task.versions:
                task.aliases[alias] = at

    def retire(self, name: str, version: int) -> None:
        """Forgets a version at once, and its task with the last one; its slot goes when nobody uses it any more.

        Nothing happens where there is no such version.
        """
        with self._lock:
            task = self._tasks.get(name)
            if task is None or version not in task.versions:
                return
            unused = self._retire(task.versions.pop(version))
            if not task.versions:
                del self._tasks[name]
        self._give_back(unused)

    def pin(self, refs: Sequence[str], principal: Principal) -> list[Version]:
        """Resolves all references at one moment; every pin is given back by `unpin`.

        A task that the principal does not see is not found. What is not resident is loaded from now on, in turns of
        the principal: `Version.loading` says when it is.

        Raises:
            InvalidInput: not a reference.
            TaskNotFound, VersionNotFound, AliasNotFound, VersionUnavailable: nothing is pinned.
        """
        parsed = {ref: parse_ref(ref) for ref in refs}
        with self._lock:
            found = {ref: self._resolve(target, principal) for ref, target in parsed.items()}
            versions = [found[ref] for ref in refs]
            cold = self._pin(versions)
        for version in cold:
            self._load(version, principal.name)
        return versions

    def pin_live(self, wanted: Callable[[Facts], bool], most: int, principal: Principal) -> list[Version]:
        """Pins the wanted of the live versions of those tasks that the principal sees, by name.

        Left out are versions that are unavailable, and versions whose manifest could not be read yet.

        Raises:
            InvalidInput: there are more than `most`; nothing is pinned, and no more were looked at.
        """
        versions: list[Version] = []
        with self._lock:
            for name, task in self._tasks.items():
                live = task.aliases.get(LIVE) if principal.sees(name) else None
                version = task.versions[live.version] if live else None
                if version is None or version.state is State.UNAVAILABLE:
                    continue
                if version.known_facts is None or not wanted(version.known_facts):
                    continue
                if len(versions) == most:
                    raise InvalidInput(f"there are more than {most} tasks; name those you want")
                versions.append(version)
            versions.sort(key=lambda version: version.facts.task)
            cold = self._pin(versions)
        for version in cold:
            self._load(version, principal.name)
        return versions

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

    def task(self, name: str) -> TaskEntry:
        """A copy of a task's entry.

        Raises:
            TaskNotFound: no such task.
        """
        with self._lock:
            return self._find(name).copy()

    def tasks(self, after: str, most: int, wanted: Callable[[str], bool] = lambda _: True) -> list[TaskEntry]:
        """Copies of the first `most` entries with a wanted name that comes after `after`, by name."""
        with self._lock:
            names = heapq.nsmallest(most, (name for name in self._tasks if name > after and wanted(name)))
            return [self._tasks[name].copy() for name in names]

    def version(self, name: str, version: int) -> Version:
        """One version.

        Raises:
            TaskNotFound, VersionNotFound: no such task or version.
        """
        with self._lock:
            return self._find(name).version(version)

    def find(self, name: str, digest: str) -> Version | None:
        """The version of a task that has this content, unless it is unavailable or its stored file is damaged."""
        with self._lock:
            task = self._tasks.get(name)
            versions = task.versions.values() if task else ()
            sound = (one for one in versions if one.state is not State.UNAVAILABLE and not one.damaged)
            return next((one for one in sound if one.entry.digest == digest), None)

    def versions(self) -> list[Version]:
        """Every version."""
        with self._lock:
            return [version for task in self._tasks.values() for version in task.versions.values()]

    def counts(self) -> dict[str, int]:
        """Numbers of tasks, of versions, of those that are resident and unavailable, and of damaged files."""
        with self._lock:
            return {
                "tasks": len(self._tasks),
                "versions": self._num_versions,
                "resident": len(self._residents),
                "unavailable": len(self._unavailable),
                "damaged": len(self._damaged),
            }

    def _find(self, name: str) -> TaskEntry:
        if name not in self._tasks:
            raise no_such_task(name)
        return self._tasks[name]

    def _resolve(self, ref: TaskRef, principal: Principal) -> Version:
        # One error at one place for a foreign task and for one that is not there, so that no answer tells them apart.
        if not principal.sees(ref.task):
            raise no_such_task(ref.task)
        task = self._find(ref.task)
        number = ref.version
        if number is None:
            if ref.alias not in task.aliases:
                raise AliasNotFound(f"{ref.task} has no alias {ref.alias}")
            number = task.aliases[ref.alias].version
        version = task.version(number)
        if version.state is State.UNAVAILABLE:
            raise self._refusal(version)
        return version

    def _refusal(self, version: Version) -> VersionUnavailable:
        entry = version.entry
        error = VersionUnavailable(f"version {entry.version} of {entry.task} cannot be loaded: {version.reason}")
        if version.next_try is not None:
            error.retry_after = max(1, ceil(version.next_try - self._clock()))
        return error

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
        for counted, versions in (
            (version.state is State.UNAVAILABLE, self._unavailable),
            (version.damaged, self._damaged),
        ):
            if counted and not version.retired:
                versions.add(version)
            else:
                versions.discard(version)

    def _retire(self, version: Version) -> int | None:
        version.retired = True
        self._residents.pop(version, None)
        self._num_versions -= 1
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
