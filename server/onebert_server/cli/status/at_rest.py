"""The status of a store without its server: traffic, alarms and what its extensions count in memory are not known."""

from collections import defaultdict
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
from onebert_store.registry.records import VersionEntry
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import Store


class StoreStatus:
    """Reads the status of tasks from a store."""

    def __init__(self, store: Store) -> None:
        self._registry = Registry(store)

    def tasks(self) -> list[TaskStatus]:
        """The status of every task, by name."""
        whole = self._registry.feed.snapshot()
        entries = defaultdict[str, dict[int, VersionEntry]](dict)
        for entry in whole.entries:
            entries[entry.task][entry.version] = entry
        live = self._live([entries[task][at[LIVE].version] for task, at in whole.aliases.items() if LIVE in at])
        last = self._registry.feed.last_moves([*entries])
        every = [
            schemas.Stored(task, [*numbers], whole.aliases.get(task, {}), live.get(task), whole.keepings.get(task))
            for task, numbers in entries.items()
        ]
        return self._added([schemas.status_of(stored, last.get(stored.name)) for stored in every], whole=False)

    def task(self, name: str) -> Picture:
        """All that is in force for one task; raises TaskNotFound."""
        entries, aliases = self._registry.feed.task(name)
        if not entries:
            raise no_such_task(name)
        numbers, at = [entry.version for entry in entries], aliases.get(LIVE)
        live = self._live([entry for entry in entries if at and entry.version == at.version]).get(name)
        stored = schemas.Stored(name, numbers, aliases, live, self._registry.feed.keepings().get(name))
        moves = self._registry.feed.moves(name, schemas.MOVES)
        [status] = self._added([schemas.status_of(stored, moves[0] if moves else None)], whole=True)
        shown = schemas.in_force(status, stored, moves)
        wanted = in_force(shown, numbers)
        read = self._registry.manifests([entry for entry in entries if entry.version in wanted])
        return Picture(shown, [_line(*pair) for pair in sorted(read, key=lambda pair: pair[0].version)])

    def _added(self, statuses: Sequence[TaskStatus], whole: bool) -> list[TaskStatus]:
        columns: list[Mapping[str, Mapping[str, Any]]] = [
            module.stored(self._registry, statuses, whole) for module in modules("stored")
        ]
        return [schemas.extended(status, columns) for status in statuses]

    def _live(self, entries: Sequence[VersionEntry]) -> dict[str, schemas.LiveVersion]:
        return {
            entry.task: schemas.LiveVersion(
                manifest.task_type, manifest.base.name, entry.created_at, score_of(manifest.training), manifest.decision
            )
            for entry, manifest in self._registry.manifests(entries)
        }


def _line(entry: VersionEntry, manifest: Manifest) -> VersionLine:
    facts = entry.version, entry.created_at, manifest.method, len(manifest.labels)
    return VersionLine(*facts, training_in({"training": manifest.training}))
