"""Resolves references in memory: tasks, aliases and versions, up to one change of the registry."""

import time
from bisect import bisect_left, bisect_right, insort
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple

from onebert_server.access.principal import OWN_WORK, Principal
from onebert_server.engine.host import Host, Slot
from onebert_server.versions.choice import KeyOf, at_random
from onebert_server.versions.facts import Facts
from onebert_server.versions.position import Position
from onebert_server.versions.states import States
from onebert_server.versions.version import Held, State, TaskEntry, Version
from onebert_store.errors import InvalidInput, OneBertError
from onebert_store.registry.keeping import Keeping
from onebert_store.registry.names import LIVE, TaskRef, no_such_task, parse_ref, similar
from onebert_store.registry.records import Alias
from onebert_store.registry.target import Target


class ResidentRow(NamedTuple):
    """The row of a version in memory, and its facts, at one moment; see `Uses`."""

    slot: Slot
    generation: int
    facts: Facts


class Meaning(NamedTuple):
    """The versions of a reference at one moment, and the row of the one that answers; None while it is loaded.

    `keeping` is how much its task keeps of its answers.
    """

    versions: Held
    row: ResidentRow | None
    keeping: Keeping | None


class Directory(States):
    """Every registered version by name; thread-safe and quick: nothing here reads a disk or computes.

    Only the Follower changes the registered state here; `position` is the registry's change that it shows, `keepings`
    is how much is kept of the answers of tasks that keep any. Each change gives new generations to the rows of the
    versions that something else is now true of, so that nobody acts on what a reference meant before.
    """

    def __init__(self, hosts: Sequence[Host], load: Callable[[Version, str], None], clock: Callable[[], float]) -> None:
        super().__init__(hosts, load, clock)
        self.position = Position()
        self.keepings: Mapping[str, Keeping] = {}
        self._tasks: dict[str, TaskEntry] = {}
        # Sorted: a page of the list costs the same with ten tasks and with a million.
        self._names: list[str] = []
        self._num_versions = 0

    def show(
        self,
        name: str,
        versions: Sequence[Version],
        aliases: Mapping[str, Alias] | None,
        numbers: Collection[int] | None = None,
    ) -> dict[Version, bool]:
        """Makes a task equal to its registered state at one moment; what waits at the engine by then is still answered.

        Returns the versions of aliases that are new or have moved, each with whether it answers or is only a shadow.

        Args:
            versions: the registered ones. A version that is shown already stays, unless the new one has its row.
            aliases: all aliases, which mean versions that are there; None keeps those whose versions stay.
            numbers: the numbers that `versions` covers, registered or not; None means all.
        """
        with self._lock:
            task = self._tasks.get(name) or TaskEntry(name)
            shown, before = task.versions, task.aliases
            self._num_versions -= len(shown)
            gone = set(shown if numbers is None else numbers) - {version.entry.version for version in versions}
            retired = [shown.pop(number) for number in gone if number in shown]
            for version in versions:
                entry = version.entry
                if known := shown.get(entry.version):
                    if known.entry.digest == entry.digest and version.held_slot is None:
                        known.entry = entry
                        continue
                    retired.append(known)
                shown[entry.version] = version
                if version.held_slot is not None:
                    self._add_resident(version)
            self._num_versions += len(shown)
            if aliases is None:
                aliases = {alias: at for alias, at in before.items() if gone.isdisjoint(at.target.numbers)}
            task.aliases = dict(aliases)
            self._list(task)
            moved = [alias for alias, at in aliases.items() if alias not in before or before[alias].target != at.target]
            aliased = _versions_of((task, alias) for alias in moved)
            slots = [self._retire(version) for version in retired]
            left = [at for alias, at in before.items() if alias in moved or alias not in aliases]
            self._renew(shown[number] for at in left for number, _ in at.target.shares if number in shown)
        # Not under the lock, because memory is freed.
        for slot in slots:
            if slot is not None:
                slot.release()
        return aliased

    def keep(self, keepings: Mapping[str, Keeping]) -> None:
        """Changes how much is kept of the answers of tasks."""
        with self._lock:
            before, self.keepings = self.keepings, keepings
            changed = (name for name in {*before, *keepings} if before.get(name) != keepings.get(name))
            for name in changed:
                if name in self._tasks:
                    self._renew(self._tasks[name].versions.values())

    def meanings(
        self,
        refs: Sequence[str],
        principal: Principal,
        key_of: KeyOf = at_random,
        missed: dict[str, OneBertError] | None = None,
    ) -> list[Meaning]:
        """Resolves all references at one moment. Pins the versions that answer only if not all of them have a row.

        A task that the principal does not see is not found. Versions that are not resident are loaded from now on, in
        turns of the principal; `Version.loading` ends when one is there. `key_of` chooses the versions of splits.
        `missed` gets the errors of references by these; without it the first error is raised.
        """
        held = dict[str, Held]()
        with self._lock:
            for ref in refs:
                try:
                    held[ref] = held.get(ref) or self._held(parse_ref(ref), principal, key_of)
                except OneBertError as error:
                    if missed is None:
                        raise
                    missed[ref] = error
            return self._with_rows([held[ref] for ref in refs if ref in held], principal.name)

    def live_meanings(
        self, wanted: Callable[[Facts], bool], limit: int, principal: Principal, key_of: KeyOf = at_random
    ) -> list[Meaning]:
        """Like `meanings`, of the wanted live versions, by name, of those tasks that the principal sees.

        It leaves out versions that are unavailable or have no known manifest. More than `limit` wanted ones, or more
        than `limit` without a known manifest, raise InvalidInput; then nothing is pinned, and the scan stops.
        """
        with self._lock:
            return self._with_rows(self._live(wanted, limit, principal, key_of), principal.name)

    def live_facts(
        self, wanted: Callable[[Facts], bool], limit: int, principal: Principal, key_of: KeyOf
    ) -> list[Facts]:
        """Like `live_meanings`, without loading or pinning anything."""
        with self._lock:
            return [answering.facts for answering, *_ in self._live(wanted, limit, principal, key_of)]

    def pin(self, refs: Iterable[str], principal: Principal) -> list[Version]:
        """Pins the versions that references mean at one moment; raises the errors of `meanings`, and pins nothing then.

        The caller gives every pin back with `unpin`.
        """
        parsed = [parse_ref(ref) for ref in refs]
        with self._lock:
            pinned = [self._held(target, principal, at_random)[0] for target in parsed]
            self._pin(pinned, principal.name)
        return pinned

    def row_of(self, version: Version) -> ResidentRow | None:
        """Returns the row of a version now; None if it is not in memory, or retired."""
        with self._lock:
            return self._row_of(version)

    def task(self, name: str, after: int = 0, limit: int | None = None, who: Principal = OWN_WORK) -> TaskEntry:
        """Returns a copy of a task's entry with its first `limit` versions above `after`; raises TaskNotFound."""
        with self._lock:
            return self._find(name, who).copy(after, limit)

    def tasks(self, after: str, limit: int, prefix: str = "", who: Principal = OWN_WORK) -> list[TaskEntry]:
        """Returns copies of a principal's first `limit` entries by name, behind `after` and with `prefix`."""
        with self._lock:
            return [self._tasks[name].copy() for name in islice(self._names_of(who, after, prefix), limit)]

    def version(self, name: str, number: int, who: Principal = OWN_WORK) -> Version:
        with self._lock:
            return self._find(name, who).version(number)

    def find(self, name: str, digest: str) -> Version | None:
        """Returns the version of a task with this content, unless it is unavailable."""
        with self._lock:
            task = self._tasks.get(name, TaskEntry(name))
            sound = (v for v in task.versions.values() if v.state is not State.UNAVAILABLE)
            return next((version for version in sound if version.entry.digest == digest), None)

    def versions(self) -> list[Version]:
        with self._lock:
            return [version for task in self._tasks.values() for version in task.versions.values()]

    def aliased(self) -> list[Version]:
        """Returns every version that an alias means: by name, the live ones first, shadows of all aliases last."""
        with self._lock:
            every = [(alias != LIVE, name, alias) for name in self._names for alias in self._tasks[name].aliases]
            aliased = _versions_of((self._tasks[name], alias) for _, name, alias in sorted(every))
            return sorted(aliased, key=lambda version: not aliased[version])

    def alias_of(self, name: str, alias: str) -> Alias | None:
        """Returns an alias of a task, if the task has it."""
        with self._lock:
            task = self._tasks.get(name)
            return task.aliases.get(alias) if task else None

    def back(self, name: str, at: Alias) -> Target | None:
        """Returns the meaning that an alias of a task rolls back to, with the versions that there are now."""
        with self._lock:
            return at.back(self._tasks[name].versions) if name in self._tasks else None

    def is_aliased(self, name: str, number: int) -> bool:
        """Whether requests to an alias of this task may be answered by this version now."""
        with self._lock:
            task = self._tasks.get(name)
            shares = (at.target.shares for at in task.aliases.values()) if task else ()
            return any(number == version for of_alias in shares for version, _ in of_alias)

    def counts(self) -> dict[str, int]:
        with self._lock:
            return {
                "tasks": len(self._tasks),
                "versions": self._num_versions,
                "resident": len(self._residents),
                "unavailable": len(self._unavailable),
            }

    def _held(self, ref: TaskRef, principal: Principal, key_of: KeyOf) -> Held:
        task = self._find(ref.task, principal)
        versions = task.choose(ref.alias or LIVE, key_of) if ref.version is None else Held((task.version(ref.version),))
        if versions[0].state is State.UNAVAILABLE:
            raise self._refusal(versions[0])
        return versions

    def _live(self, wanted: Callable[[Facts], bool], limit: int, principal: Principal, key_of: KeyOf) -> list[Held]:
        live: list[Held] = []
        unknown = 0
        for name in self._names_of(principal):
            if LIVE not in self._tasks[name].aliases:
                continue
            versions = self._tasks[name].choose(LIVE, key_of)
            if versions[0].state is State.UNAVAILABLE:
                continue
            if versions[0].known_facts is None:
                unknown += 1
            elif wanted(versions[0].known_facts):
                live.append(versions)
            if max(len(live), unknown) > limit:
                raise InvalidInput(f"there are more than {limit} tasks; name those you want")
        return live

    def _with_rows(self, versions: Sequence[Held], principal: str) -> list[Meaning]:
        rows = [self._row_of(answering) for answering, *_ in versions]
        if any(row is None for row in rows):
            self._pin([answering for answering, *_ in versions], principal)
        else:
            self._use((answering for answering, *_ in versions), time.monotonic())
            versions = [self._in_memory(each) for each in versions]
        keepings = (self.keepings.get(answering.entry.task) for answering, *_ in versions)
        return [Meaning(*meaning) for meaning in zip(versions, rows, keepings, strict=True)]

    def _row_of(self, version: Version) -> ResidentRow | None:
        if version.retired or version.state is not State.RESIDENT:
            return None
        return ResidentRow(version.slot, version.slot.generation, version.facts)

    def _find(self, name: str, who: Principal) -> TaskEntry:
        """Raises the same TaskNotFound for missing and for invisible tasks: no answer tells them apart."""
        task = self._tasks.get(name)
        if task is None or not who.sees(name):
            known = (other for other in similar(name) if other in self._tasks and who.sees(other))
            raise no_such_task(name, next(known, None))
        return task

    def _list(self, task: TaskEntry) -> None:
        if task.versions and task.name not in self._tasks:
            self._tasks[task.name] = task
            insort(self._names, task.name)
        elif not task.versions and task.name in self._tasks:
            del self._tasks[task.name]
            del self._names[bisect_left(self._names, task.name)]

    def _names_of(self, who: Principal, after: str = "", prefix: str = "") -> Iterator[str]:
        """Yields the names that a principal sees, in order; scans only names with one of the principal's prefixes."""
        for beginning in who.beginnings:
            if not (beginning.startswith(prefix) or prefix.startswith(beginning)):
                continue
            begins = max(beginning, prefix, key=len)
            start = max(bisect_left(self._names, begins), bisect_right(self._names, after))
            for index in range(start, len(self._names)):
                name = self._names[index]
                if not name.startswith(begins):
                    break
                if who.sees(name):
                    yield name


def _versions_of(aliases: Iterable[tuple[TaskEntry, str]]) -> dict[Version, bool]:
    """Returns the versions of aliases, in their order, each with whether it answers or is only a shadow."""
    answers: dict[Version, bool] = {}
    for task, alias in aliases:
        target = task.alias(alias).target
        for number, _ in target.shares:
            answers[task.versions[number]] = True
        for shadow in target.shadows:
            answers.setdefault(task.versions[shadow.version], False)
    return answers
