"""The order in which waiting sequences of several principals are served, computed at once for all of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.maths.flat import ranges

Indices = NDArray[np.intp]


def records(table: NDArray[Any]) -> NDArray[np.void]:
    """Returns a view of a table whose rows have no fields: numpy copies it ten times as fast."""
    return table.view(f"V{table.itemsize}")


def picked(table: NDArray[Any], index: NDArray[Any]) -> NDArray[Any]:
    """Returns rows of a table, by their indices or a mask."""
    rows: NDArray[Any] = records(table)[index].view(table.dtype)
    return rows


def first_of_each(values: NDArray[Any], count: int) -> Indices:
    """Returns where each of some numbers below `count` is first."""
    places, first = np.arange(len(values)), np.zeros(count, np.intp)
    # The last assignment to an element counts.
    first[values[::-1]] = places[::-1]
    each: Indices = (first[values] == places).nonzero()[0]
    return each


def in_turn(who: Indices, rounds: NDArray[np.int64]) -> Indices:
    """Returns the order by rounds, and within a round by the order in which principals came to it.

    Args:
        who: whose each sequence is: numbers from 0, in the order in which the principals came to their rounds. Sorted;
            a principal's sequences are served one after another.
        rounds: of each, never decreasing for one principal.
    """
    if not ((who[1:] == who[:-1]) & (rounds[1:] != rounds[:-1])).any():
        return rounds.argsort(kind="stable")
    # One entry for the sequences of a principal in one round. Its rank is compared first by its round, then by the rank
    # of the principal's entry before, which was served when it came to this round: prefix doubling, as for suffix
    # arrays. Before its first entry each principal has one whose rank is its place.
    count, entries = int(who[-1]) + 1, (begins(who) | begins(rounds)).nonzero()[0]
    of, turns, places = who[entries], rounds[entries], np.arange(count + len(entries))
    before = np.concatenate([places[:count], np.where(begins(of), of, places[count:] - 1)])
    ranks = np.concatenate([places[:count], turns - turns.min() + count])
    while True:
        both = ranks[count:] * (int(ranks.max()) + 1) + ranks[before[count:]]
        order = both.argsort()
        ordered = both[order]
        steps = (ordered[1:] != ordered[:-1]).cumsum()
        if len(steps) == 0 or steps[-1] == len(steps):
            return ranges(entries[order], np.diff(entries, append=len(who))[order])
        ranks[count + order[0]], ranks[count + order[1:]] = count, steps + count
        before = before[before]


def begins(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each value differs from the one before."""
    differ = np.empty(len(values), np.bool_)
    differ[:1] = True
    np.not_equal(values[1:], values[:-1], out=differ[1:])
    return differ
