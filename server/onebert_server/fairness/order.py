"""The order in which waiting sequences of several principals are served, computed at once for all of them."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

Indices = NDArray[np.intp]


def spread(starts: NDArray[Any], ends: NDArray[Any]) -> Indices:
    """Returns the indices of all ranges, one range after another."""
    lengths = ends - starts
    before = np.cumsum(lengths) - lengths
    return np.repeat(starts - before, lengths) + np.arange(int(lengths.sum()))


def within(amounts: NDArray[Any], who: Indices) -> NDArray[np.int64]:
    """Returns running sums that begin anew with each principal; `who` is sorted."""
    sums, starts = np.cumsum(amounts, dtype=np.int64), begins(who)
    before = sums[starts] - amounts[starts]
    within_each: NDArray[np.int64] = sums - before[np.cumsum(starts) - 1]
    return within_each


def in_turn(who: Indices, rounds: NDArray[np.int64], first: slice | None = None) -> Indices:
    """Returns the order by rounds, and within a round by the order in which principals came to it.

    Args:
        who: whose each sequence is: the place of its principal among those that have come to their first rounds here,
            by the order in which they came. Sorted; a principal's sequences are served one after another.
        rounds: of each, never decreasing for one principal.
        first: sequences that are served before all others, out of turn; the first of their principal, in one round.
    """
    # One entry for the sequences of a principal in one round. Its rank is compared first by its round, then by the rank
    # of the principal's entry before, which was served when it came to this round: prefix doubling, as for suffix
    # arrays. Before its first entry each principal has one whose rank is its place.
    count, starts = int(who[-1]) + 1, begins(who) | begins(rounds)
    if first is not None:
        starts[first.stop : first.stop + 1] = True
    entries = np.flatnonzero(starts)
    new, keys = begins(who[entries]), rounds[entries] - rounds.min() + count + 1
    if first is not None:
        keys[place := int(np.searchsorted(entries, first.start))] = count
        # The principal's other sequences in the round come in its turn.
        new[place + 1 : place + 2] |= rounds[entries[place + 1 : place + 2]] == rounds[first.start]
    before = np.where(new, who[entries], count + np.arange(len(entries)) - 1)
    before = np.concatenate([np.arange(count), before])
    ranks, distinct = np.concatenate([np.arange(count), keys]), 0
    while distinct < len(entries):
        both = ranks[count:] * (int(ranks.max()) + 1) + ranks[before[count:]]
        unique, inverse = np.unique(both, return_inverse=True)
        distinct, ranks[count:] = len(unique), inverse + count
        before = before[before]
    order = np.argsort(ranks[count:])
    return spread(entries[order], np.append(entries, len(who))[order + 1])


def begins(values: NDArray[Any]) -> NDArray[np.bool_]:
    """Whether each value differs from the one before."""
    differ = np.ones(len(values), np.bool_)
    np.not_equal(values[1:], values[:-1], out=differ[1:])
    return differ
