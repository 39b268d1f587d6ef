"""Logs and counts the moves and deletions that a server shows, and exports the shares of its aliases."""

import logging
from collections.abc import Iterable, Iterator
from contextlib import suppress
from itertools import islice

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from onebert_server.contract.moves import why
from onebert_server.http.schemas.administration import change_of
from onebert_server.telemetry.counts import AnswerCounts
from onebert_server.telemetry.metrics import Metrics
from onebert_server.versions.directory import Directory
from onebert_server.versions.version import TaskEntry
from onebert_store.errors import TaskNotFound
from onebert_store.registry.records import Action, Change

logger = logging.getLogger("onebert.moves")

DELETIONS = frozenset({Action.DELETE_VERSION, Action.DELETE_TASK})


class MoveLog:
    """Gets each change that the server shows, whoever made it; logs and counts moves and deletions."""

    def __init__(self, metrics: Metrics) -> None:
        self._moves = metrics.counter("moves", "Moves of aliases, and deletions, that are shown here.", "action")

    def __call__(self, change: Change) -> None:
        deletes = change.action in DELETIONS
        if not (change.alias or deletes):
            return
        self._moves.labels(change.action).inc()
        shown, at = change_of(change), change.alias or change.version
        place, what = f"{change.task}@{at}" if at else f"{change.task}", "deleted" if deletes else shown.what
        logger.info(", ".join(filter(None, (f"{place}: {what}", f"by {change.principal}", why(shown)))))


class AliasShares(Collector):
    """At most `most` versions of aliases, those of tasks with series of their own first."""

    def __init__(self, counts: AnswerCounts, directory: Directory, most: int) -> None:
        self._counts, self._directory, self._most = counts, directory, most

    def describe(self) -> Iterable[Metric]:
        """The metric without samples; the registry reads its name."""
        yield _family()

    def collect(self) -> Iterable[Metric]:
        """The present targets of aliases."""
        family = _family()
        tasks = {task.name: task for task in (*self._busy(), *self._directory.tasks("", self._most))}
        shares = (
            ([task.name, alias, str(version)], share / 100)
            for task in tasks.values()
            for alias, at in task.aliases.items()
            for version, share in at.target.shares
        )
        for sample in islice(shares, self._most):
            family.add_metric(*sample)
        yield family

    def _busy(self) -> Iterator[TaskEntry]:
        for name in self._counts.tasks():
            with suppress(TaskNotFound):
                yield self._directory.task(name, limit=0)


def _family() -> GaugeMetricFamily:
    text = "Share of an alias's requests that a version answers."
    return GaugeMetricFamily("onebert_task_alias", text, labels=["task", "alias", "version"])
