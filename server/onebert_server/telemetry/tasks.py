"""Metrics per version of a task: the busiest versions have their own series, and the others share one.

A version's counters never decrease while it has a series. When another version takes its place the series ends, and its
counts go nowhere: `(other)` counts only answers of versions that had no series at the time.
"""

import math
from collections.abc import Iterable, Sequence
from itertools import accumulate

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from onebert_server.telemetry.counts import SCORES, AnswerCounts
from onebert_server.telemetry.paces import BOUNDS

_VERSION = ["task", "version"]
# Some of `BOUNDS`.
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class TaskSeries(Collector):
    """Collects the series of versions."""

    def __init__(self, counts: AnswerCounts) -> None:
        self._counts = counts

    def describe(self) -> Iterable[Metric]:
        """The metrics without samples; the registry reads their names."""
        return _families()

    def collect(self) -> Iterable[Metric]:
        """A consistent snapshot of all counts."""
        seconds, scores, cut, labels = families = _families()
        for key, series in self._counts.series():
            seconds.add_metric(key, _buckets(BOUNDS, series.requests, SECONDS), series.seconds)
            scores.add_metric(key, _buckets(SCORES, series.scores, SCORES), series.score)
            cut.add_metric(key, series.cut)
            for label, count in series.labels.items():
                labels.add_metric([*key, label], count)
        return families


def _buckets(bounds: Sequence[float], counts: Sequence[int], shown: Sequence[float]) -> Sequence[tuple[str, float]]:
    totals = dict(zip((*bounds, math.inf), accumulate(counts), strict=True))
    return [*((str(bound), totals[bound]) for bound in shown), ("+Inf", totals[math.inf])]


def _families() -> tuple[HistogramMetricFamily, HistogramMetricFamily, CounterMetricFamily, CounterMetricFamily]:
    return (
        HistogramMetricFamily(
            "onebert_task_request_seconds", "Time to answer a request with something of this task.", labels=_VERSION
        ),
        HistogramMetricFamily("onebert_task_top_score", "Top scores of the answers.", labels=_VERSION),
        CounterMetricFamily("onebert_task_truncated", "Answers whose text was cut.", labels=_VERSION),
        CounterMetricFamily("onebert_task_labels", "Labels that were answered.", labels=[*_VERSION, "label"]),
    )
