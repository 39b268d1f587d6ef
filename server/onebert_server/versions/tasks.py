"""The index of tasks with their versions and aliases: lookups by name, and lists in the order of names."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice

from onebert_server.access.principal import OWN_WORK, Principal
from onebert_server.versions.version import TaskEntry, Version
from onebert_store.registry.names import LIVE, no_such_task, similar
from onebert_store.registry.records import Alias, VersionEntry


class Tasks:
    """The index of a Directory, whose lock the caller holds; an alias always points at a version that is there."""

    def __init__(self) -> None:
        self.num_versions = 0
        self._by_name: dict[str, TaskEntry] = {}
        # Sorted names: a page of the list costs the same with ten tasks and with a million.
        self._names: list[str] = []

    def __len__(self) -> int:
        return len(self._by_name)

    def fill(self, entries: Iterable[VersionEntry], aliases: Mapping[str, dict[str, Alias]]) -> None:
        """Fills an empty index without copying the dicts of aliases."""
        for entry in entries:
            task = self._by_name.get(entry.task)
            if task is None:
                task = self._by_name[entry.task] = TaskEntry(entry.task, aliases=aliases.get(entry.task, {}))
            task.versions[entry.version] = Version(entry)
            self.num_versions += 1
        # The database may order names by the rules of a language.
        self._names = sorted(self._by_name)

    def add(self, version: Version) -> Version | None:
        """Adds a version; returns the version that it replaces, if any."""
        name, number = version.entry.task, version.entry.version
        task = self._by_name.get(name)
        if task is None:
            task = self._by_name[name] = TaskEntry(name)
            insort(self._names, name)
        before = task.versions.get(number)
        task.versions[number] = version
        self.num_versions += before is None
        return before

    def set_aliases(self, name: str, aliases: Mapping[str, Alias]) -> None:
        """Replaces the aliases of a task, which point at its versions; does nothing for a missing task."""
        if task := self._by_name.get(name):
            task.aliases = dict(aliases)

    def remove(self, name: str, number: int) -> Version | None:
        """Removes and returns a version, with its aliases, and with the last version its task; None if missing."""
        task = self._by_name.get(name)
        if task is None or number not in task.versions:
            return None
        version = task.versions.pop(number)
        self.num_versions -= 1
        for alias in [alias for alias, at in task.aliases.items() if at.version == number]:
            del task.aliases[alias]
        if not task.versions:
            del self._by_name[name]
            del self._names[bisect_left(self._names, name)]
        return version

    def rename(self, name: str, new: str) -> None:
        task = self._by_name.pop(name, None)
        if task is None:
            return
        del self._names[bisect_left(self._names, name)]
        task.name = new
        for version in task.versions.values():
            version.entry = replace(version.entry, task=new)
            if version.known_facts is not None:
                version.known_facts = replace(version.known_facts, task=new)
        self._by_name[new] = task
        insort(self._names, new)

    def find(self, name: str) -> TaskEntry:
        if name not in self._by_name:
            raise no_such_task(name)
        return self._by_name[name]

    def require(self, name: str, who: Principal) -> None:
        """Raises the same TaskNotFound for missing and for invisible tasks: no answer tells them apart."""
        if name not in self._by_name or not who.sees(name):
            raise no_such_task(
                name, next((one for one in similar(name) if one in self._by_name and who.sees(one)), None)
            )

    def page(self, who: Principal, after: str, most: int, prefix: str) -> list[TaskEntry]:
        """Returns a principal's first `most` tasks by name, behind `after` and with `prefix`."""
        return [self._by_name[name] for name in islice(self._names_of(who, after, prefix), most)]

    def resolve(self, name: str, number: int | None, alias: str | None) -> Version:
        task = self.find(name)
        if number is None:
            number = task.alias(alias or LIVE).version
        return task.version(number)

    def versions(self) -> Iterator[Version]:
        return (version for task in self._by_name.values() for version in task.versions.values())

    def of(self, name: str) -> Iterable[Version]:
        return self._by_name[name].versions.values() if name in self._by_name else ()

    def live(self, who: Principal) -> Iterator[Version]:
        """Yields, by name, the live version of each task that a principal sees."""
        for name in self._names_of(who):
            task = self._by_name[name]
            if at := task.aliases.get(LIVE):
                yield task.versions[at.version]

    def aliased(self) -> list[Version]:
        live = dict.fromkeys(self.live(OWN_WORK))
        others = (task.versions[at.version] for task in self._by_name.values() for at in task.aliases.values())
        return list(live | dict.fromkeys(others))

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
