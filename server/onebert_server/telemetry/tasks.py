"""What the tasks of a server do, as metrics: for those with the most traffic each for itself, for all others together.

A task's counters never go down while they are shown. When another task takes its place they end, and count nowhere
else: what `(other)` counts are answers of tasks that were not shown when they were given (decision 39).
"""

import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence

from prometheus_client.core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from onebert_server.telemetry.observed import Seen

# No task is called so.
OTHER = "(other)"
# Labels that are counted of one task, those first that are answered first; all others are one more.
MAX_LABELS = 32
# Traffic is followed of so many times as many tasks as are shown.
FOLLOWED = 10
# Seconds after which tasks with more traffic take the places of others, and what came before counts half.
RANK_EVERY = 600.0
# So many times the traffic of a shown task has one that takes its place: two alike do not take turns.
MARGIN = 2

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
SCORES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 1.0)


class TaskCounts(Collector):
    """Counts answers by task, on the event loop; they may be collected from any thread.

    Args:
        most: how many tasks are shown.
        clock: in seconds.
    """

    def __init__(self, most: int, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._clock = clock
        self._shown: dict[str, _Task] = {}
        self._other = _Task()
        self._traffic: dict[str, int] = {}
        self._ranked = clock()
        # Held for no longer than a request is counted, or all counts are copied.
        self._lock = threading.Lock()

    def count(self, answers: Sequence[Seen], seconds: float) -> None:
        """Counts the answers of one request, which took so long; nothing for a request without any."""
        with self._lock:
            self._count(answers, seconds)

    def describe(self) -> Iterable[Metric]:
        """What is collected, without samples: by these names a registry finds what is asked for."""
        return _families()

    def collect(self) -> Iterable[Metric]:
        """See Collector; all counts are those of one moment."""
        with self._lock:
            counted = [(task, counts.copy()) for task, counts in (*self._shown.items(), (OTHER, self._other))]
        seconds, scores, labels = families = _families()
        for task, counts in counted:
            counts.seconds.add_to(seconds, task)
            counts.scores.add_to(scores, task)
            for label, count in counts.labels.items():
                labels.add_metric([task, label], count)
        return families

    def _count(self, answers: Sequence[Seen], seconds: float) -> None:
        if self._clock() - self._ranked > RANK_EVERY:
            self._rank()
        followed, timed = set[str](), set[_Task]()
        for seen in answers:
            counts = self._of(seen.task)
            if seen.task not in followed:
                followed.add(seen.task)
                self._follow(seen.task)
            if counts not in timed:
                timed.add(counts)
                counts.seconds.observe(seconds)
            counts.count(seen)

    def _of(self, task: str) -> "_Task":
        counts = self._shown.get(task)
        if counts is None and len(self._shown) < self._most:
            counts = self._shown[task] = _Task()
        return counts or self._other

    def _follow(self, task: str) -> None:
        """Counts a request by the algorithm of Misra and Gries.

        Its count is never too high, and too low by less than the requests since the last ranking divided by the tasks
        that are followed. Each step down was once a step up, so that a request costs the same however many tasks come.
        """
        if task in self._traffic:
            self._traffic[task] += 1
        elif len(self._traffic) < FOLLOWED * self._most:
            self._traffic[task] = 1
        else:
            self._traffic = {name: count - 1 for name, count in self._traffic.items() if count > 1}

    def _rank(self) -> None:
        traffic = self._traffic
        coming = sorted(traffic.keys() - self._shown.keys(), key=lambda task: -traffic[task])
        going = sorted(self._shown, key=lambda task: traffic.get(task, 0))
        for new, old in zip(coming, going, strict=False):
            if traffic[new] <= MARGIN * traffic.get(old, 0):
                break
            del self._shown[old]
            self._shown[new] = _Task()
        self._traffic = {task: count // 2 for task, count in traffic.items() if count > 1}
        self._ranked = self._clock()


def _families() -> tuple[HistogramMetricFamily, HistogramMetricFamily, CounterMetricFamily]:
    """The metrics of tasks, without samples: seconds of requests, top scores, labels."""
    return (
        HistogramMetricFamily(
            "onebert_task_request_seconds", "Time to answer a request with something of this task.", labels=["task"]
        ),
        HistogramMetricFamily("onebert_task_top_score", "Top scores of the answers.", labels=["task"]),
        CounterMetricFamily("onebert_task_labels", "Labels that were answered.", labels=["task", "label"]),
    )


class _Task:
    def __init__(self) -> None:
        self.seconds, self.scores = _Histogram(SECONDS), _Histogram(SCORES)
        self.labels: dict[str, int] = {}

    def count(self, seen: Seen) -> None:
        if seen.score is not None:
            self.scores.observe(seen.score)
        for label in seen.labels:
            known = label in self.labels or len(self.labels) < MAX_LABELS
            self._add(label if known else OTHER)

    def copy(self) -> "_Task":
        copied = _Task()
        copied.seconds, copied.scores, copied.labels = self.seconds.copy(), self.scores.copy(), self.labels.copy()
        return copied

    def _add(self, label: str) -> None:
        self.labels[label] = self.labels.get(label, 0) + 1


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

    def add_to(self, family: HistogramMetricFamily, task: str) -> None:
        total, buckets = 0, []
        for bound, count in zip([*map(str, self._bounds), "+Inf"], self._counts, strict=True):
            total += count
            buckets.append((bound, total))
        family.add_metric([task], buckets=buckets, sum_value=self._sum)
