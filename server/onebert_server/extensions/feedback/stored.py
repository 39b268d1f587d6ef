"""The feedback on tasks in a store at rest."""

from collections.abc import Mapping, Sequence
from typing import Any

from onebert_server.contract.status import TaskStatus
from onebert_store.registry.registry import Registry
from onebert_store.samples.store import open_samples


def stored(registry: Registry, tasks: Sequence[TaskStatus], _: bool) -> dict[str, Mapping[str, Any]]:
    """Counts, by task with a live version, the rows of feedback since that version was made."""
    since = {task.name: task.created_at for task in tasks if task.created_at}
    with open_samples(registry.database) as samples:
        counts = samples.feedback_since(since)
    return {task: {"feedback": counts.get(task, 0)} for task in since}
