"""Requests of each task in the last minutes, how long they took, and what share of answers abstained; all fade."""

import math
import time
from bisect import bisect_left
from collections.abc import Callable, Collection, Sequence
from itertools import accumulate, pairwise
from operator import add
from typing import NamedTuple

from onebert_server.observed import ABSTAINED
from onebert_server.telemetry.answer_counts import AnswerCounts, Key, RequestAnswers, Slot

# Seconds in which a request's weight falls to 1/e.
FADES = 300.0
# No rate is measured over less than these seconds after the start.
LEAST_SECONDS = 60.0
BOUNDS = (0.0, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Requests by their seconds, then counts of answers: all, abstained, to a cut text.
_BUCKETS = len(BOUNDS) + 1
ANSWERS, ABSTENTIONS, CUT = _BUCKETS, _BUCKETS + 1, _BUCKETS + 2
_NONE = [0.0] * (_BUCKETS + 3)
_ABSTAINS = (ABSTAINED,)


class Pace(NamedTuple):
    """Requests a minute; seconds within which 95 of 100 are answered, by a histogram; shares of the answers."""

    a_minute: float
    p95: float
    abstained: float
    cut: float


class Paces:
    """Counts requests on the event loop; any thread may read."""

    def __init__(self, counts: AnswerCounts, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._began = clock()
        self._lock = counts.lock
        # A request with several versions of a task is counted for one of them, so that their sum is the task's.
        self._requests: Slot[tuple[float, list[float]]] = Slot(counts)
        counts.listeners.append(self._count)

    def of(self, tasks: Collection[str]) -> dict[str, Pace]:
        """Returns the paces of the tasks that were asked since the start."""
        now, sums = self._clock(), dict[str, list[float]]()
        with self._lock:
            states = self._requests.states.copy()
        requests = [(key[0], at, counts[:]) for key, (at, counts) in states.items() if key[0] in tasks]
        for task, at, counts in requests:
            sums[task] = [*map(add, sums.get(task, _NONE), _faded(counts, now - at))]
        # A constant rate that began with the server has filled this share of its limit.
        filled = 1 - math.exp(-max(now - self._began, LEAST_SECONDS) / FADES)
        return {task: _pace(counts, FADES * filled) for task, counts in sums.items()}

    def _count(self, requests: Sequence[RequestAnswers]) -> None:
        now, found = self._clock(), dict[Key, list[float]]()
        for answers, seconds in requests:
            bucket, last = bisect_left(BOUNDS, seconds, lo=1), dict[str, list[float]]()
            for seen in answers:
                key = seen.task, seen.version
                if (counts := found.get(key)) is None:
                    counts = found[key] = self._now(key, now)
                last[seen.task] = counts
                counts[ANSWERS] += 1.0
                counts[ABSTENTIONS] += seen.labels == _ABSTAINS
                counts[CUT] += seen.cut
            for counts in last.values():
                counts[bucket] += 1.0

    def _now(self, key: Key, now: float) -> list[float]:
        at, counts = self._requests.states.get(key) or self._requests.put(key, (now, [*_NONE]))
        # Once a second is exact to a third of a percent.
        if now - at >= 1.0:
            _, counts = self._requests.put(key, (now, _faded(counts, now - at)))
        return counts


def _faded(counts: Sequence[float], seconds: float) -> list[float]:
    keeps = math.exp(-seconds / FADES)
    return [count * keeps for count in counts]


def _pace(counts: Sequence[float], seconds: float) -> Pace:
    requests, answers = counts[:_BUCKETS], counts[ANSWERS] or 1.0
    return Pace(60 * sum(requests) / seconds, _p95(requests), counts[ABSTENTIONS] / answers, counts[CUT] / answers)


def _p95(counts: Sequence[float]) -> float:
    rank = 0.95 * sum(counts)
    for (low, high), before, count in zip(pairwise(BOUNDS), accumulate(counts), counts[1:], strict=False):
        if before + count >= rank:
            return low + (high - low) * (rank - before) / (count or 1.0)
    return BOUNDS[-1]
