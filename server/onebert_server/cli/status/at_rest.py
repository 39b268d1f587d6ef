"""The status of a store without its server: traffic, alarms and what its extensions count in memory are not known."""

from collections.abc import Mapping, Sequence
from typing import Any

from onebert_server.cli.compare.measured import training_in
from onebert_server.cli.status.picture import Picture, VersionLine, in_force
from onebert_server.client import TaskStatus
from onebert_server.http.schemas import status as schemas
from onebert_server.installed import modules
from onebert_store.file.manifest import Manifest
from onebert_store.file.measured import score_of
from onebert_store.registry.names import LIVE, no_such_task
from onebert_store.registry.records import TaskRecord, VersionEntry
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import Store


class StoreStatus:
    """Reads the status of tasks from a store."""

    def __init__(self, store: Store) -> None:
        self._registry = Registry(store)

    def tasks(self) -> list[TaskStatus]:
        """The status of every task, by name."""
        records = self._registry.tasks()
        last = self._registry.feed.last_moves([record.name for record in records])
        statuses = [schemas.status_of(stored, last.get(stored.name)) for stored in self._stored(records)]
        return self._added(statuses, whole=False)

    def task(self, name: str) -> Picture:
        """All that is in force for one task; raises TaskNotFound."""
        record = next((record for record in self._registry.tasks() if record.name == name), None)
        if record is None:
            raise no_such_task(name)
        [stored], moves = self._stored([record]), self._registry.feed.moves(name, schemas.MOVES)
        at = record.aliases.get(LIVE)
        live = self._manifests(record, {at.version} if at else set())
        [status] = self._added([schemas.status_of(stored, moves[0] if moves else None)], whole=True)
        decision = next((manifest.decision for _, manifest in live), None)
        shown = schemas.in_force(status, stored, decision, moves)
        read = self._manifests(record, in_force(shown, record.versions))
        return Picture(shown, [_line(entry, manifest) for entry, manifest in read])

    def _added(self, statuses: Sequence[TaskStatus], whole: bool) -> list[TaskStatus]:
        """Adds what extensions keep in the store."""
        columns: list[Mapping[str, Mapping[str, Any]]] = [
            module.stored(self._registry, statuses, whole) for module in modules("stored")
        ]
        return [schemas.extended(status, columns) for status in statuses]

    def _stored(self, records: Sequence[TaskRecord]) -> list[schemas.Stored]:
        entries = {(entry.task, entry.version): entry for entry in self._registry.entries()}
        aliases = ((record.name, record.aliases.get(LIVE)) for record in records)
        live = [entries[name, at.version] for name, at in aliases if at is not None]
        versions = {
            entry.task: schemas.LiveVersion(manifest.base.name, entry.created_at, score_of(manifest.training))
            for entry, manifest in self._registry.manifests(live)
        }
        keepings = self._registry.feed.keepings()
        return [
            schemas.Stored(
                record.name, record.versions, record.aliases, versions.get(record.name), keepings.get(record.name)
            )
            for record in records
        ]

    def _manifests(self, record: TaskRecord, numbers: set[int]) -> list[tuple[VersionEntry, Manifest]]:
        entries = [entry for entry in self._registry.entries() if entry.task == record.name]
        read = self._registry.manifests([entry for entry in entries if entry.version in numbers])
        return sorted(read, key=lambda pair: pair[0].version)


def _line(entry: VersionEntry, manifest: Manifest) -> VersionLine:
    facts = entry.version, entry.created_at, manifest.method, len(manifest.labels)
    return VersionLine(*facts, training_in({"training": manifest.training}))
