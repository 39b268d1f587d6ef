"""Resolves references in memory: tasks, aliases and versions, up to one change of the registry."""

from collections.abc import Callable, Iterable, Mapping, Sequence

from onebert_server.access.principal import OWN_WORK, Principal
from onebert_server.versions.facts import Facts
from onebert_server.versions.position import Position
from onebert_server.versions.states import States
from onebert_server.versions.tasks import Tasks
from onebert_server.versions.version import State, TaskEntry, Version
from onebert_store.errors import InvalidInput
from onebert_store.registry.names import TaskRef, parse_ref
from onebert_store.registry.records import Alias, Snapshot


class Directory(States):
    """Every registered version by name; thread-safe and quick: nothing here reads a disk or computes.

    Only the Follower changes the registered state here; `position` is the registry's change that it shows.
    """

    def __init__(
        self, release: Callable[[int], None], load: Callable[[Version, str], None], clock: Callable[[], float]
    ) -> None:
        super().__init__(release, load, clock)
        self.position = Position()
        self._tasks = Tasks()

    def fill(self, snapshot: Snapshot) -> None:
        """Fills an empty directory from a snapshot without copying its dicts."""
        with self._lock:
            self._tasks.fill(snapshot.entries, snapshot.aliases)

    def show(self, name: str, new: Sequence[Version], gone: Iterable[int], aliases: Mapping[str, Alias]) -> None:
        """Replaces the state of a task at one moment; requests that pinned a version before keep it.

        Args:
            new: versions that are resolvable from now on; they replace versions with the same numbers.
            gone: version numbers to forget, if they are there; a slot is freed when no request uses it any more.
            aliases: all aliases of the task from now on; they point at versions that are there.
        """
        with self._lock:
            before = [self._tasks.add(version) for version in new]
            for version in new:
                if version.state is State.RESIDENT:
                    self._residents[version] = None
                    self._unused_now.notify_all()
                self._note(version)
            before += [self._tasks.remove(name, number) for number in gone]
            self._tasks.set_aliases(name, aliases)
            unused = [self._retire(version) for version in before if version]
        for slot in unused:
            self._give_back(slot)

    def rename(self, name: str, new: str) -> None:
        """Renames a task, if it exists, and forgets the task with the new name; pinned versions are not disturbed."""
        with self._lock:
            taken = [one.entry.version for one in self._tasks.of(new)] if self._tasks.of(name) else []
            unused = [self._retire(one) for number in taken if (one := self._tasks.remove(new, number))]
            self._tasks.rename(name, new)
        for slot in unused:
            self._give_back(slot)

    def pin(self, refs: Sequence[str], principal: Principal) -> list[Version]:
        """Resolves all references at one moment, or pins nothing; the caller gives every pin back with `unpin`.

        A task that the principal does not see is not found. Versions that are not resident are loaded from now on, in
        turns of the principal; `Version.loading` ends when one is there.
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
        """Pins, by name, the wanted live versions of those tasks that the principal sees.

        It leaves out versions that are unavailable or have no known manifest. More than `most` wanted ones, or more
        than `most` without a known manifest, raise InvalidInput; then nothing is pinned, and the scan stops.
        """
        versions: list[Version] = []
        unknown = 0
        with self._lock:
            for version in self._tasks.live(principal):
                if version.state is State.UNAVAILABLE:
                    continue
                if version.known_facts is None:
                    unknown += 1
                elif wanted(version.known_facts):
                    versions.append(version)
                if max(len(versions), unknown) > most:
                    raise InvalidInput(f"there are more than {most} tasks; name those you want")
            cold = self._pin(versions)
        for version in cold:
            self._load(version, principal.name)
        return versions

    def task(self, name: str, after: int = 0, most: int | None = None) -> TaskEntry:
        """Returns a copy of a task's entry with its first `most` versions above `after`; raises TaskNotFound."""
        with self._lock:
            return self._tasks.find(name).copy(after, most)

    def tasks(self, after: str, most: int, prefix: str = "", who: Principal = OWN_WORK) -> list[TaskEntry]:
        """Returns copies of a principal's first `most` entries by name, behind `after` and with `prefix`."""
        with self._lock:
            return [task.copy() for task in self._tasks.page(who, after, most, prefix)]

    def require(self, name: str, who: Principal) -> None:
        with self._lock:
            self._tasks.require(name, who)

    def task_alias(self, name: str, alias: str) -> Alias:
        with self._lock:
            return self._tasks.find(name).alias(alias)

    def version(self, name: str, version: int) -> Version:
        with self._lock:
            return self._tasks.find(name).version(version)

    def find(self, name: str, digest: str) -> Version | None:
        """Returns the version of a task with this content, unless it is unavailable or its stored file is damaged."""
        with self._lock:
            sound = (one for one in self._tasks.of(name) if one.state is not State.UNAVAILABLE and not one.damaged)
            return next((one for one in sound if one.entry.digest == digest), None)

    def versions(self) -> list[Version]:
        with self._lock:
            return list(self._tasks.versions())

    def aliased(self) -> list[Version]:
        """Returns every version with an alias, the live ones first."""
        with self._lock:
            return self._tasks.aliased()

    def counts(self) -> dict[str, int]:
        with self._lock:
            return {
                "tasks": len(self._tasks),
                "versions": self._tasks.num_versions,
                "resident": len(self._residents),
                "unavailable": len(self._unavailable),
                "damaged": len(self._damaged),
            }

    def _resolve(self, target: TaskRef, principal: Principal) -> Version:
        self._tasks.require(target.task, principal)
        version = self._tasks.resolve(target.task, target.version, target.alias)
        if version.state is State.UNAVAILABLE:
            raise self._refusal(version)
        return version
