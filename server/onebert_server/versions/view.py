"""What one principal sees of what is registered: its own tasks, and nothing that tells of others."""

from onebert_server.access.principal import Action, Principal
from onebert_server.versions.catalog import Catalog
from onebert_server.versions.version import TaskEntry, Version
from onebert_store.file.changes import Change, changes, difference
from onebert_store.file.format import loads
from onebert_store.file.manifest import Manifest
from onebert_store.registry.records import Alias


class View:
    """Reads for one principal; a task that it does not see is one that there is not.

    Every method raises Forbidden where the principal's scopes do not allow it, and TaskNotFound for a task that is none
    of its own.
    """

    def __init__(self, catalog: Catalog, principal: Principal) -> None:
        self._catalog = catalog
        self._directory = catalog.directory
        self._principal = principal

    def tasks(self, after: str, most: int, prefix: str) -> list[TaskEntry]:
        """The first `most` tasks whose names come after `after` and begin with `prefix`, by name."""
        self._principal.require_scope(Action.SEE)
        return self._directory.tasks(after, most, prefix, self._principal)

    def task(self, name: str, after: int, most: int) -> TaskEntry:
        """One task, with the first `most` of its versions whose numbers are above `after`, and what is known of them.

        Reads the registry for those whose manifests were not read yet.
        """
        self._require(Action.SEE, name)
        entry = self._directory.task(name, after, most)
        self._catalog.learn_all(list(entry.versions.values()))
        return entry

    def alias(self, task: str, alias: str) -> Alias:
        """Where an alias points.

        Raises:
            AliasNotFound: the task has no such alias.
        """
        self._require(Action.SEE, task)
        return self._directory.task_alias(task, alias)

    def version(self, task: str, number: int) -> Version:
        """One version.

        Raises:
            VersionNotFound: the task has no such version.
        """
        self._require(Action.SEE, task)
        return self._directory.version(task, number)

    def manifest(self, version: Version) -> Manifest:
        """The whole manifest of a version; reads the registry."""
        self._principal.require(Action.SEE, version.entry.task)
        self._catalog.learn(version)
        return self._catalog.manifest(version.entry)

    def changes(self, version: Version, against: Version | None = None) -> list[Change]:
        """What a version changes in the base, or beyond what another one does; reads the store."""
        self._principal.require(Action.SEE, version.entry.task)
        tensors = loads(self._catalog.read_delta(version)).tensors
        if against is not None:
            tensors = difference(tensors, loads(self._catalog.read_delta(against)).tensors)
        return changes(tensors)

    def delta(self, version: Version) -> bytes:
        """The canonical bytes of a version, verified; reads the store."""
        self._principal.require(Action.DOWNLOAD, version.entry.task)
        return self._catalog.read_delta(version)

    def _require(self, action: Action, task: str) -> None:
        self._principal.require_scope(action)
        self._directory.require(task, self._principal)
