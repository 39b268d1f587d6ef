"""The registry as one principal sees it: its own tasks, without a hint at others."""

from onebert_server.access.principal import Action, Principal
from onebert_server.versions.catalog import Catalog
from onebert_server.versions.version import TaskEntry, Version
from onebert_store.file.manifest import Manifest
from onebert_store.registry.names import LIVE
from onebert_store.registry.records import Alias
from onebert_store.registry.target import Target


class View:
    """Reads for one principal; raises Forbidden without the scope, TaskNotFound for a task that it does not see."""

    def __init__(self, catalog: Catalog, principal: Principal) -> None:
        self._catalog = catalog
        self._directory = catalog.directory
        self._principal = principal

    def tasks(self, after: str, limit: int, prefix: str) -> list[TaskEntry]:
        self._principal.require_scope(Action.SEE)
        return self._directory.tasks(after, limit, prefix, self._principal)

    def task(self, name: str, after: int, limit: int) -> TaskEntry:
        """Returns a task with its first `limit` versions above `after`; reads unknown manifests from the registry."""
        self._principal.require_scope(Action.SEE)
        entry = self._directory.task(name, after, limit, self._principal)
        self._catalog.manifests.learn_all(list(entry.versions.values()))
        return entry

    def whole_task(self, name: str) -> TaskEntry:
        """Returns a task with all its versions; reads the manifest of its live one from the registry if unknown."""
        self._principal.require_scope(Action.SEE)
        entry = self._directory.task(name, who=self._principal)
        if live := entry.aliases.get(LIVE):
            self._catalog.manifests.learn_all([entry.versions[live.version]])
        return entry

    def alias(self, task: str, alias: str) -> Alias:
        return self.task(task, after=0, limit=0).alias(alias)

    def back(self, task: str, at: Alias) -> Target | None:
        return self._directory.back(task, at) if at.earlier else None

    def version(self, task: str, number: int) -> Version:
        self._principal.require_scope(Action.SEE)
        return self._directory.version(task, number, self._principal)

    def manifest(self, version: Version) -> Manifest:
        self._principal.require(Action.SEE, version.entry.task)
        self._catalog.manifests.learn(version)
        return self._catalog.manifests.read(version.entry)

    def delta(self, version: Version) -> bytes:
        self._principal.require(Action.DOWNLOAD, version.entry.task)
        return self._catalog.read_delta(version)
