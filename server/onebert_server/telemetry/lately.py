"""Requests of each task in the last minutes, and how long they took; older ones fade."""

import math
import threading
import time
from bisect import bisect_left
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from onebert_server.observed import Seen

# Seconds in which a request's weight falls to 1/e.
FADES = 300.0
# Tasks that are counted, those asked last: about 6 MB.
MAX_TASKS = 10_000
# No rate is measured over less than these seconds after the start.
LEAST_SECONDS = 60.0
BOUNDS = (0.0, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class Pace(NamedTuple):
    """Requests a minute; seconds within which 95 of 100 are answered, interpolated in a histogram."""

    a_minute: float
    p95: float


class Lately:
    """Counts requests by task on the event loop; any thread may read."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._tasks: dict[str, tuple[float, list[float]]] = {}
        self._lock = threading.Lock()

    def count(self, answers: Iterable[Seen], seconds: float) -> None:
        """Counts a request for each task that it has answers of."""
        bucket, now = bisect_left(BOUNDS, seconds, lo=1), self._clock()
        with self._lock:
            for task in {seen.task for seen in answers}:
                at, counts = self._tasks.pop(task, (now, [0.0] * (len(BOUNDS) + 1)))
                # Once a second is exact to a third of a percent.
                if now - at >= 1.0:
                    at, counts = now, _faded(counts, now - at)
                counts[bucket] += 1.0
                self._tasks[task] = at, counts
            while len(self._tasks) > MAX_TASKS:
                del self._tasks[next(iter(self._tasks))]

    def rename(self, task: str, name: str) -> None:
        """Goes on with a task under its new name."""
        with self._lock:
            self._tasks.pop(name, None)
            if task in self._tasks:
                self._tasks[name] = self._tasks.pop(task)

    def of(self, task: str) -> Pace | None:
        """Returns a task's pace; None if it has not been asked since the start."""
        now = self._clock()
        with self._lock:
            if task not in self._tasks:
                return None
            at, counts = self._tasks[task]
            counts = _faded(counts, now - at)
        # A constant rate that began with the server has filled this share of its limit.
        filled = 1 - math.exp(-max(now - self._began, LEAST_SECONDS) / FADES)
        return Pace(60 * sum(counts) / (FADES * filled), _p95(counts))


def _faded(counts: Sequence[float], seconds: float) -> list[float]:
    keeps = math.exp(-seconds / FADES)
    return [count * keeps for count in counts]


def _p95(counts: Sequence[float]) -> float:
    rank = 0.95 * sum(counts)
    for (low, high), before, count in zip(pairwise(BOUNDS), accumulate(counts), counts[1:], strict=False):
        if before + count >= rank:
            return low + (high - low) * (rank - before) / (count or 1.0)
    return BOUNDS[-1]
