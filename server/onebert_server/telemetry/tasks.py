"""What versions of tasks do, as metrics: for those with the most traffic each for itself, for all others together.

A version's counters never go down while they are shown. When another one takes its place they end, and count nowhere
else: what `(other)` counts are answers of versions that were not shown when they were given (decision 39).
"""

import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from onebert_server.telemetry.observed import OTHER, Seen

T = TypeVar("T")
Key = tuple[str, str]
"""A task and its version, as the labels of its series say them."""

# Labels that are counted of one version, those first that are answered first; all others are one more.
MAX_LABELS = 32
# Traffic is followed of so many times as many versions as are shown.
FOLLOWED = 10
# Seconds after which versions with more traffic take the places of others, and what came before counts half.
RANK_EVERY = 600.0
# So many times the traffic of a shown version has one that takes its place: two alike do not take turns.
MARGIN = 2

_VERSION = ["task", "version"]
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


class TaskCounts(Collector):
    """Counts answers by version, on the event loop; they may be collected from any thread.

    Args:
        most: how many versions are shown.
        clock: in seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._shown: dict[Key, _Task] = {}
        self._other = _Task()
        self._traffic: dict[Key, int] = {}
        self._ranked = clock()
        # Held for no longer than a request is counted, or all counts are copied.
        self._lock = threading.Lock()

    def count(self, answers: Sequence[Seen], seconds: float) -> None:
        """Counts the answers of one request, which took so long; nothing for a request without any."""
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
        """What is collected, without samples: by these names a registry finds what is asked for."""
        return _families()

    def collect(self) -> Iterable[Metric]:
        """See Collector; all counts are those of one moment."""
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
        """Goes on counting the versions of a task under its new name, from where they are."""
        with self._lock:
            self._shown = _renamed(self._shown, task, name)
            self._traffic = _renamed(self._traffic, task, name)

    def _of(self, key: Key) -> "_Task":
        counts = self._shown.get(key)
        if counts is None and len(self._shown) < self._most:
            counts = self._shown[key] = _Task()
        return counts or self._other

    def _follow(self, key: Key) -> None:
        """Counts a request by the algorithm of Misra and Gries.

        Its count is never too high, and too low by less than the requests since the last ranking divided by the keys
        that are followed. Each step down was once a step up, so that a request costs the same however many keys come.
        """
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
    # Of a task that had the name before and is gone, nothing goes on.
    kept = ((key, value) for key, value in by_key.items() if key[0] != name)
    return {((name, version) if one == task else (one, version)): value for (one, version), value in kept}


def _families() -> tuple[HistogramMetricFamily, HistogramMetricFamily, CounterMetricFamily]:
    """The metrics of tasks, without samples: seconds of requests, top scores, labels."""
    return (
        HistogramMetricFamily(
            "onebert_task_request_seconds", "Time to answer a request with something of this task.", labels=_VERSION
        ),
        HistogramMetricFamily("onebert_task_top_score", "Top scores of the answers.", labels=_VERSION),
        CounterMetricFamily("onebert_task_labels", "Labels that were answered.", labels=[*_VERSION, "label"]),
    )


class _Task:
    def __init__(self) -> None:
        self.seconds, self.scores = _Histogram(SECONDS), _Histogram(SCORES)
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


class _Histogram:
    """As prometheus_client's, at a fifth of its time: one thread, and what is shown is made when it is asked for."""

    def __init__(self, bounds: tuple[float, ...]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def copy(self) -> "_Histogram":
        copied = _Histogram(self._bounds)
        copied._counts, copied._sum = self._counts.copy(), self._sum
        return copied

    def add_to(self, family: HistogramMetricFamily, key: Key) -> None:
        total, buckets = 0, []
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric(key, buckets=buckets, sum_value=self._sum)
