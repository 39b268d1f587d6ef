"""Requests of each task in the last minutes, how long they took, and what share of answers abstained; all fade."""

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

# Seconds in which a request's weight falls to 1/e.
FADES = 300.0
# No rate is measured over less than these seconds after the start.
LEAST_SECONDS = 60.0
BOUNDS = (0.0, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
# Requests by their seconds, then counts of answers: all, abstained, to a cut text.
_BUCKETS = len(BOUNDS) + 1
ANSWERS, ABSTENTIONS, CUT = _BUCKETS, _BUCKETS + 1, _BUCKETS + 2
NONE = (0.0,) * (_BUCKETS + 3)


class Pace(NamedTuple):
    """Requests a minute; seconds within which 95 of 100 are answered, by a histogram; shares of the answers."""

    a_minute: float
    p95: float
    abstained: float
    cut: float


def faded(counts: Sequence[float], seconds: float) -> list[float]:
    """The share of counts that remains after so many seconds."""
    keeps = math.exp(-seconds / FADES)
    return [count * keeps for count in counts]


def pace_of(counts: Sequence[float], seconds: float) -> Pace:
    """The pace by faded counts of a server that began so many seconds ago."""
    # A constant rate that began with the server has filled this share of its limit.
    filled = 1 - math.exp(-max(seconds, LEAST_SECONDS) / FADES)
    requests, answers = counts[:_BUCKETS], counts[ANSWERS] or 1.0
    a_minute = 60 * sum(requests) / (FADES * filled)
    return Pace(a_minute, _p95(requests), counts[ABSTENTIONS] / answers, counts[CUT] / answers)


def _p95(counts: Sequence[float]) -> float:
    rank = 0.95 * sum(counts)
    for (low, high), before, count in zip(pairwise(BOUNDS), accumulate(counts), counts[1:], strict=False):
        if before + count >= rank:
            return low + (high - low) * (rank - before) / (count or 1.0)
    return BOUNDS[-1]
