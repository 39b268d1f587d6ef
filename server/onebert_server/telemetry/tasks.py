"""Metrics per version of a task: the busiest versions have their own series, and the others share one.

A version's counters never decrease while it has a series. When another version takes its place the series ends, and its
counts go nowhere: `(other)` counts only answers of versions that had no series at the time (decision 39).
"""

import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from onebert_server.observed import OTHER, Seen
from onebert_server.telemetry.plain import Histogram

T = TypeVar("T")
Key = tuple[str, str]
"""A task and its version, as label values of its series."""

# Labels counted separately per version, first come first served; all others share one more series.
MAX_LABELS = 32
# Traffic is tracked for this multiple of the versions that have series.
FOLLOWED = 10
# Seconds between rankings; each ranking halves the traffic counts.
RANK_EVERY = 600.0
# A version needs this multiple of a shown version's traffic to replace it, so that two equal ones do not alternate.
MARGIN = 2

_VERSION = ["task", "version"]
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


class TaskCounts(Collector):
    """Counts answers by version on the event loop; any thread may collect them. At most `most` versions have series."""

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._shown: dict[Key, _Task] = {}
        self._other = _Task()
        self._traffic: dict[Key, int] = {}
        self._ranked = clock()
        # Held only while a request is counted or the counts are copied.
        self._lock = threading.Lock()

    def count(self, answers: Sequence[Seen], seconds: float) -> None:
        """Counts the answers of one request and its duration."""
        with self._lock:
            if self._clock() - self._ranked > RANK_EVERY:
                self._rank()
            followed, timed = set[Key](), set[_Task]()
            for seen in answers:
                key = seen.task, str(seen.version)
                counts = self._of(key)
                if key not in followed:
                    followed.add(key)
                    self._follow(key)
                if counts not in timed:
                    timed.add(counts)
                    counts.seconds.observe(seconds)
                counts.count(seen)

    def describe(self) -> Iterable[Metric]:
        """The metrics without samples; the registry reads their names."""
        return _families()

    def collect(self) -> Iterable[Metric]:
        """A consistent snapshot of all counts."""
        with self._lock:
            shown = (*self._shown.items(), ((OTHER, ""), self._other))
            counted = [(key, counts.copy()) for key, counts in shown]
        seconds, scores, labels = families = _families()
        for key, counts in counted:
            counts.seconds.add_to(seconds, key)
            counts.scores.add_to(scores, key)
            for label, count in counts.labels.items():
                labels.add_metric([*key, label], count)
        return families

    def rename(self, task: str, name: str) -> None:
        """Continues the counts of a task's versions under its new name."""
        with self._lock:
            self._shown = _renamed(self._shown, task, name)
            self._traffic = _renamed(self._traffic, task, name)

    def _of(self, key: Key) -> "_Task":
        counts = self._shown.get(key)
        if counts is None and len(self._shown) < self._most:
            counts = self._shown[key] = _Task()
        return counts or self._other

    def _follow(self, key: Key) -> None:
        """Counts a request by the algorithm of Misra and Gries."""
        # A count is never too high; it is too low by less than the requests since the last ranking divided by the
        # number of tracked keys. Each decrement undoes an earlier increment, so the amortized cost does not grow with
        # the number of keys.
        if key in self._traffic:
            self._traffic[key] += 1
        elif len(self._traffic) < FOLLOWED * self._most:
            self._traffic[key] = 1
        else:
            self._traffic = {one: count - 1 for one, count in self._traffic.items() if count > 1}

    def _rank(self) -> None:
        traffic = self._traffic
        coming = sorted(traffic.keys() - self._shown.keys(), key=lambda key: -traffic[key])
        going = sorted(self._shown, key=lambda key: traffic.get(key, 0))
        for new, old in zip(coming, going, strict=False):
            if traffic[new] <= MARGIN * traffic.get(old, 0):
                break
            del self._shown[old]
            self._shown[new] = _Task()
        self._traffic = {key: count // 2 for key, count in traffic.items() if count > 1}
        self._ranked = self._clock()


def _renamed(by_key: dict[Key, T], task: str, name: str) -> dict[Key, T]:
    # Drops the series of a deleted task that had the new name before.
    kept = ((key, value) for key, value in by_key.items() if key[0] != name)
    return {((name, version) if one == task else (one, version)): value for (one, version), value in kept}


def _families() -> tuple[HistogramMetricFamily, HistogramMetricFamily, CounterMetricFamily]:
    return (
        HistogramMetricFamily(
            "onebert_task_request_seconds", "Time to answer a request with something of this task.", labels=_VERSION
        ),
        HistogramMetricFamily("onebert_task_top_score", "Top scores of the answers.", labels=_VERSION),
        CounterMetricFamily("onebert_task_labels", "Labels that were answered.", labels=[*_VERSION, "label"]),
    )


class _Task:
    def __init__(self) -> None:
        self.seconds, self.scores = Histogram(SECONDS), Histogram(SCORES)
        self.labels = Counter[str]()

    def count(self, seen: Seen) -> None:
        if seen.score is not None:
            self.scores.observe(seen.score)
        for label in seen.labels:
            known = label in self.labels or len(self.labels) < MAX_LABELS
            self.labels[label if known else OTHER] += 1

    def copy(self) -> "_Task":
        copied = _Task()
        copied.seconds, copied.scores, copied.labels = self.seconds.copy(), self.scores.copy(), self.labels.copy()
        return copied
