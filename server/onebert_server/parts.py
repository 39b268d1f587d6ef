"""Cuts a sequence of pieces into parts of bounded cost."""

from collections.abc import Iterator, Sequence
from math import inf


def parts_of(costs: Sequence[int], most: float, count: float = inf) -> Iterator[range]:
    """Yields ranges of at most `count` pieces, which cost at most `most` together, or of one piece."""
    start = spent = 0
    for index, cost in enumerate(costs):
        if index > start and (spent + cost > most or index - start == count):
            yield range(start, index)
            start, spent = index, 0
        spent += cost
    if costs:
        yield range(start, len(costs))
