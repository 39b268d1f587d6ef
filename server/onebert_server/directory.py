"""What requests resolve against: tasks, aliases and resident versions in memory, and who still uses which."""

import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from onebert_store.errors import AliasNotFound, TaskNotFound, VersionNotFound, VersionUnavailable
from onebert_store.names import LIVE, parse_ref
from onebert_store.registry import Alias, VersionRecord


@dataclass(frozen=True, eq=False)
class Resident:
    """A version whose row lies in a slot of the bank."""

    record: VersionRecord
    slot: int


@dataclass(frozen=True, eq=False)
class Unavailable:
    """A version that is registered but could not be loaded."""

    record: VersionRecord


Entry = Resident | Unavailable


@dataclass
class TaskEntry:
    """A task: its versions by number and its aliases."""

    name: str
    versions: dict[int, Entry] = field(default_factory=dict)
    aliases: dict[str, Alias] = field(default_factory=dict)


class Directory:
    """Thread-safe and quick: nothing here reads a disk or computes.

    A request pins what it resolved until it is answered; a retired version's slot is released with its last pin.
    """

    def __init__(self, release: Callable[[int], None]) -> None:
        self._release = release
        self._lock = threading.Lock()
        self._tasks: dict[str, TaskEntry] = {}
        self._pins: Counter[int] = Counter()
        self._retired: set[int] = set()

    def publish(self, entry: Entry, aliases: Mapping[str, Alias]) -> None:
        """Makes a version resolvable, and its task's aliases those given."""
        record = entry.record
        with self._lock:
            task = self._tasks.setdefault(record.task, TaskEntry(record.task))
            task.versions[record.version] = entry
            task.aliases = dict(aliases)

    def set_alias(self, name: str, alias: str, at: Alias | None) -> None:
        """Moves an alias, or forgets it (None); requests pinned before stay where they are."""
        with self._lock:
            aliases = self._tasks[name].aliases
            if at:
                aliases[alias] = at
            else:
                del aliases[alias]

    def retire(self, name: str, version: int) -> None:
        """Forgets a version at once, and its task with the last one; its slot goes when nobody uses it any more."""
        with self._lock:
            versions = self._tasks[name].versions
            entry = versions.pop(version)
            if not versions:
                del self._tasks[name]
            if isinstance(entry, Unavailable):
                return
            self._retired.add(entry.slot)
        self._release_unused([entry.slot])

    def pin(self, refs: Sequence[str]) -> list[Resident]:
        """Resolves all references at one moment; every pin is given back by `unpin`.

        Raises:
            InvalidInput: not a reference.
            TaskNotFound, VersionNotFound, AliasNotFound, VersionUnavailable: nothing is pinned.
        """
        parsed = {ref: parse_ref(ref) for ref in refs}
        with self._lock:
            found = {ref: self._resolve(target.task, target.version, target.alias) for ref, target in parsed.items()}
            residents = [found[ref] for ref in refs]
            self._pins.update(resident.slot for resident in residents)
            return residents

    def pin_live(self, wanted: Callable[[VersionRecord], bool]) -> list[Resident]:
        """Pins the wanted of the tasks' live versions, by name; those that are unavailable are left out."""
        with self._lock:
            tasks = [task for _, task in sorted(self._tasks.items()) if LIVE in task.aliases]
            entries = [task.versions[task.aliases[LIVE].version] for task in tasks]
            residents = [entry for entry in entries if isinstance(entry, Resident) and wanted(entry.record)]
            self._pins.update(resident.slot for resident in residents)
            return residents

    def unpin(self, residents: Sequence[Resident]) -> None:
        """Gives pins back; callable from any thread."""
        with self._lock:
            self._pins.subtract(resident.slot for resident in residents)
        self._release_unused([resident.slot for resident in residents])

    def task(self, name: str) -> TaskEntry:
        """A copy of a task's entry.

        Raises:
            TaskNotFound: no such task.
        """
        with self._lock:
            return _copy(self._find(name))

    def tasks(self) -> list[TaskEntry]:
        """Copies of all entries, by name."""
        with self._lock:
            return [_copy(task) for _, task in sorted(self._tasks.items())]

    def version(self, name: str, version: int) -> Entry:
        """One version.

        Raises:
            TaskNotFound, VersionNotFound: no such task or version.
        """
        with self._lock:
            return _version(self._find(name), version)

    def find(self, name: str, digest: str) -> Resident | None:
        """The resident version of a task that has this content."""
        with self._lock:
            task = self._tasks.get(name)
            entries = task.versions.values() if task else ()
            return next(
                (entry for entry in entries if isinstance(entry, Resident) and entry.record.digest == digest), None
            )

    def counts(self) -> dict[str, int]:
        """Numbers of tasks, of versions, and of versions that are unavailable."""
        with self._lock:
            entries = [entry for task in self._tasks.values() for entry in task.versions.values()]
            unavailable = sum(isinstance(entry, Unavailable) for entry in entries)
            return {"tasks": len(self._tasks), "versions": len(entries), "unavailable": unavailable}

    def _find(self, name: str) -> TaskEntry:
        if name not in self._tasks:
            raise TaskNotFound(f"there is no task {name}")
        return self._tasks[name]

    def _resolve(self, name: str, version: int | None, alias: str | None) -> Resident:
        task = self._find(name)
        if version is None:
            if alias not in task.aliases:
                raise AliasNotFound(f"{name} has no alias {alias}")
            version = task.aliases[alias].version
        entry = _version(task, version)
        if isinstance(entry, Unavailable):
            raise VersionUnavailable(f"version {version} of {name} is registered, but could not be loaded")
        return entry

    def _release_unused(self, slots: Iterable[int]) -> None:
        with self._lock:
            unused = {slot for slot in slots if slot in self._retired and not self._pins[slot]}
            self._retired -= unused
            for slot in slots:
                if not self._pins[slot]:
                    del self._pins[slot]
        for slot in unused:
            self._release(slot)


def _copy(task: TaskEntry) -> TaskEntry:
    return TaskEntry(task.name, dict(sorted(task.versions.items())), dict(sorted(task.aliases.items())))


def _version(task: TaskEntry, version: int) -> Entry:
    if version not in task.versions:
        raise VersionNotFound(f"{task.name} has no version {version}")
    return task.versions[version]
