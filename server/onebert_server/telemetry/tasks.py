"""Metrics per version of a task: the busiest versions have their own series, and the others share one.

A version's counters never decrease while it has a series. When another version takes its place the series ends, and its
counts go nowhere: `(other)` counts only answers of versions that had no series at the time.
"""

import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from onebert_server.observed import OTHER, Seen
from onebert_server.telemetry.answer_counts import AnswerCounts, Key, RequestAnswers, Slot
from onebert_server.telemetry.plain import Histogram

# Labels counted separately per version, first come first served; all others share one more series.
MAX_LABELS = 32
# Seconds between rankings; each ranking halves the traffic counts.
RANK_EVERY = 600.0
# A version needs this multiple of a shown version's traffic to replace it, so that two equal ones do not alternate.
MARGIN = 2

_VERSION = ["task", "version"]
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


class TaskSeries(Collector):
    """Counts answers by version on the event loop; any thread may collect them. At most `most` versions have series."""

    def __init__(self, counts: AnswerCounts, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._lock = counts.lock
        self._shown: Slot[_Series] = Slot(counts)
        # Requests of each version that has answered lately, halved at each ranking.
        self._traffic: Slot[_Traffic] = Slot(counts)
        self._other = _Series()
        self._ranked = clock()
        counts.listeners.append(self._count)

    def describe(self) -> Iterable[Metric]:
        """The metrics without samples; the registry reads their names."""
        return _families()

    def tasks(self) -> list[str]:
        """The tasks whose versions have series."""
        with self._lock:
            return list(dict.fromkeys(task for task, _ in self._shown.states))

    def collect(self) -> Iterable[Metric]:
        """A consistent snapshot of all counts."""
        with self._lock:
            counted = [((task, str(number)), series.copy()) for (task, number), series in self._shown.states.items()]
            counted.append(((OTHER, ""), self._other.copy()))
        seconds, scores, truncated, labels = families = _families()
        for key, series in counted:
            series.seconds.add_to(seconds, key)
            series.scores.add_to(scores, key)
            truncated.add_metric(key, series.truncated)
            for label, count in series.labels.items():
                labels.add_metric([*key, label], count)
        return families

    def _count(self, requests: Sequence[RequestAnswers]) -> None:
        if self._clock() - self._ranked > RANK_EVERY:
            self._rank()
        found, counted = dict[Key, tuple[_Traffic, _Series]](), dict[_Series, _Counted]()
        for answers, seconds in requests:
            asked, timed = set[Key](), set[_Series]()
            for seen in answers:
                key = seen.task, seen.version
                if key not in found:
                    found[key] = self._found(key)
                traffic, series = found[key]
                if key not in asked:
                    asked.add(key)
                    traffic.requests += 1
                if series not in counted:
                    counted[series] = _Counted([], [])
                if series not in timed:
                    timed.add(series)
                    counted[series].seconds.append(seconds)
                counted[series].answers.append(seen)
        for series, its in counted.items():
            series.count(*its)

    def _found(self, key: Key) -> tuple["_Traffic", "_Series"]:
        traffic = self._traffic.states.get(key) or self._traffic.put(key, _Traffic())
        series = self._shown.states.get(key)
        if series is None and len(self._shown.states) < self._most:
            series = self._shown.put(key, _Series())
        return traffic, series or self._other

    def _rank(self) -> None:
        traffic = {key: traffic.requests for key, traffic in self._traffic.states.items()}
        shown = [key for key, _ in self._shown.states.items()]
        coming = sorted(traffic.keys() - set(shown), key=lambda key: -traffic[key])
        going = sorted(shown, key=lambda key: traffic[key])
        for new, old in zip(coming, going, strict=False):
            if traffic[new] <= MARGIN * traffic[old]:
                break
            self._shown.drop(old)
            self._shown.put(new, _Series())
        for _, followed in self._traffic.states.items():
            followed.requests //= 2
        self._ranked = self._clock()


def _families() -> tuple[HistogramMetricFamily, HistogramMetricFamily, CounterMetricFamily, CounterMetricFamily]:
    return (
        HistogramMetricFamily(
            "onebert_task_request_seconds", "Time to answer a request with something of this task.", labels=_VERSION
        ),
        HistogramMetricFamily("onebert_task_top_score", "Top scores of the answers.", labels=_VERSION),
        CounterMetricFamily("onebert_task_truncated", "Answers whose text was cut.", labels=_VERSION),
        CounterMetricFamily("onebert_task_labels", "Labels that were answered.", labels=[*_VERSION, "label"]),
    )


@dataclass(slots=True)
class _Traffic:
    requests: int = 0


class _Counted(NamedTuple):
    """The requests of a turn with answers of a series, by their seconds, and these answers."""

    seconds: list[float]
    answers: list[Seen]


class _Series:
    def __init__(self) -> None:
        self.seconds, self.scores = Histogram(SECONDS), Histogram(SCORES)
        self.labels = Counter[str]()
        self.truncated = 0

    def count(self, seconds: Sequence[float], answers: Sequence[Seen]) -> None:
        self.seconds.observe_all(seconds)
        scores: list[float] = []
        for seen in answers:
            self.truncated += seen.cut
            if seen.score is not None:
                scores.append(seen.score)
            for label in seen.labels:
                known = label in self.labels or len(self.labels) < MAX_LABELS
                self.labels[label if known else OTHER] += 1
        self.scores.observe_all(scores)

    def copy(self) -> "_Series":
        copied = _Series()
        copied.seconds, copied.scores, copied.labels = self.seconds.copy(), self.scores.copy(), self.labels.copy()
        copied.truncated = self.truncated
        return copied
