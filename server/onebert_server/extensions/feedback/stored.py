"""The feedback on tasks in a store at rest."""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from onebert_server.contract.status import TaskStatus
from onebert_server.extensions.feedback.given import new_labels
from onebert_server.extensions.feedback.verdicts import judge
from onebert_server.http.schemas.tasks import AliasRequest
from onebert_server.versions.facts import Facts
from onebert_store.errors import StoreCorrupt
from onebert_store.registry.registry import Registry
from onebert_store.registry.target import Target
from onebert_store.samples.store import open_samples


def stored(registry: Registry, tasks: Sequence[TaskStatus], whole: bool) -> dict[str, Mapping[str, Any]]:
    """Counts, by task with a live version, the rows of feedback since that version was made; of one, new labels.

    Candidates of `live` have their verdicts.
    """
    since = {task.name: task.created_at for task in tasks if task.created_at}
    with open_samples(registry.database, looking=True) as samples:
        counts = samples.feedback_since(since)
        candidates = {task.name: judge(samples, task.name, target) for task in tasks if (target := _rollout(task))}
        new = {task: new_labels(samples, task, _newest(registry, task)) for task in since} if whole else {}
    return {
        task: {"feedback": counts.get(task, 0), "new_labels": new.get(task), "candidates": candidates.get(task)}
        for task in since
    }


def _rollout(task: TaskStatus) -> Target | None:
    facts = task.live and task.live.target
    return AliasRequest(split=facts.split, sticky=facts.sticky, shadow=facts.shadow).target if facts else None


def _newest(registry: Registry, task: str) -> Facts | None:
    with suppress(StoreCorrupt):
        return Facts.from_record(registry.version(task, max(entry.version for entry in registry.feed.task(task)[0])))
    return None
