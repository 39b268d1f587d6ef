"""Manifests of registered versions: read from the registry, and shown in the directory."""

import threading
from collections.abc import Callable, Sequence

from onebert_server.versions.residency.residents import Residents
from onebert_server.versions.version import State, Version
from onebert_store.errors import NotFound, OneBertError, StoreCorrupt
from onebert_store.file.format import loads
from onebert_store.file.manifest import Manifest
from onebert_store.registry.records import VersionEntry
from onebert_store.registry.registry import Registry

# Manifests per query: with a query for each, a start would take thousands of round trips to the database.
LEARNED_TOGETHER = 64


class Manifests:
    """Reads manifests; its methods block."""

    def __init__(self, registry: Registry, residents: Residents) -> None:
        self._registry = registry
        self._residents = residents
        self._directory = residents.directory
        self._learning = threading.Lock()

    def read(self, entry: VersionEntry) -> Manifest:
        """Returns the whole manifest of a version; from its file if the registry's copy is damaged."""
        try:
            return self._registry.version(entry.task, entry.version).manifest
        except StoreCorrupt:
            return loads(self._registry.read(entry)).manifest

    def find(self, task: str, version: int) -> Manifest:
        """Returns the whole manifest of a registered version; raises NotFound."""
        return self.read(self._directory.version(task, version).entry)

    def learn_all(self, versions: Sequence[Version], learned: Callable[[int], None] = lambda _: None) -> None:
        """Like `learn`, with one query for many versions; calls `learned` with the number since its last call."""
        for start in range(0, len(versions), LEARNED_TOGETHER):
            together = versions[start : start + LEARNED_TOGETHER]
            if any(version.known_facts is None for version in together):
                # A caller that waits here for the same manifests finds them known afterwards.
                with self._learning:
                    unknown = {version.entry: version for version in together if version.known_facts is None}
                    for entry, manifest in self._registry.manifests(list(unknown)) if unknown else ():
                        self._directory.know(unknown[entry], entry.with_manifest(manifest))
            # The other manifests are damaged, and `learn` reads them from the files; or the versions were deleted
            # meanwhile.
            for version in together:
                self.learn(version)
            learned(len(together))

    def learn(self, version: Version) -> None:
        """Reads the manifest of a version unless it is known."""
        if version.known_facts is not None:
            return
        try:
            record = version.entry.with_manifest(self.read(version.entry))
        except NotFound:
            # Deleted a moment ago; the follower is about to show it.
            return
        except OneBertError as error:
            # A version that could not be loaded keeps its own reason and the time of its next try.
            if version.state is State.REGISTERED:
                self._residents.failed(version, error)
        else:
            self._directory.know(version, record)
