"""The gates of tasks in a store at rest."""

from collections.abc import Mapping, Sequence
from typing import Any

from onebert_server.contract.status import GateInForce, TaskStatus
from onebert_server.extensions.gate.documents import NAME, read
from onebert_store.registry.registry import Registry


def stored(registry: Registry, tasks: Sequence[TaskStatus], whole: bool) -> dict[str, Mapping[str, Any]]:
    """The gate of each task that has one, with its numbers if `whole`."""
    names = registry.documents.tasks(NAME)
    gates = {task.name: read(registry.documents, task.name) if whole else None for task in tasks if task.name in names}
    return {name: {"gate": gate.counted if gate else GateInForce()} for name, gate in gates.items()}
