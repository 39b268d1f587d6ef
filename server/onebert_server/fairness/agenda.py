"""A priority queue with entries that can be dropped; not thread-safe."""

import heapq
import itertools
from collections.abc import Iterator
from typing import Generic, TypeVar

T = TypeVar("T")

# The heap is rebuilt when its dropped entries outnumber the others by this many.
MAX_STALE = 1024


class Agenda(Generic[T]):
    """A heap. Equal numbers come out in the order of `put`; a dropped thing is not referenced any more.

    Agendas that share the iterator `places` have one such order, and their heads can be compared.
    """

    def __init__(self, places: Iterator[int] | None = None) -> None:
        self._heap: list[tuple[float, int]] = []
        self._things: dict[int, T] = {}
        self._places = places or itertools.count()

    def put(self, when: float, thing: T) -> int:
        """Adds a thing; returns its place, for `drop`."""
        place = next(self._places)
        self._things[place] = thing
        heapq.heappush(self._heap, (when, place))
        return place

    def drop(self, place: int | None) -> None:
        """Removes the thing at a place; None removes nothing."""
        if place is None:
            return
        del self._things[place]
        if len(self._heap) > 2 * len(self._things) + MAX_STALE:
            self._heap = [entry for entry in self._heap if entry[1] in self._things]
            heapq.heapify(self._heap)

    def first(self) -> T | None:
        """Returns the thing with the least number; None if there is nothing."""
        head = self.head()
        return None if head is None else head[2]

    def head(self) -> tuple[float, int, T] | None:
        """Returns the first thing behind its number and its place."""
        while self._heap:
            when, place = self._heap[0]
            if place in self._things:
                return when, place, self._things[place]
            heapq.heappop(self._heap)
        return None
