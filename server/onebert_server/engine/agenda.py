"""Things in the order of a number, of which any can be dropped; not thread-safe."""

import heapq
import itertools
from typing import Generic, TypeVar

T = TypeVar("T")

# Places of things that were dropped are cleared away when there are so many more of them than of things.
MAX_STALE = 1024


class Agenda(Generic[T]):
    """A heap. Things with equal numbers come in the order in which they were put; a dropped thing is not held."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int]] = []
        self._things: dict[int, T] = {}
        self._places = itertools.count()

    def __len__(self) -> int:
        """How many places the heap holds, those of dropped things included."""
        return len(self._heap)

    def put(self, when: float, thing: T) -> int:
        """Adds a thing; returns its place, for `drop`."""
        place = next(self._places)
        self._things[place] = thing
        heapq.heappush(self._heap, (when, place))
        return place

    def drop(self, place: int | None) -> None:
        """Removes the thing of a place; there is none without a place."""
        if place is None:
            return
        del self._things[place]
        if len(self._heap) > 2 * len(self._things) + MAX_STALE:
            self._heap = [entry for entry in self._heap if entry[1] in self._things]
            heapq.heapify(self._heap)

    def first(self) -> tuple[float, T] | None:
        """The thing with the least number, and that number; None where there is nothing."""
        while self._heap:
            when, place = self._heap[0]
            if place in self._things:
                return when, self._things[place]
            heapq.heappop(self._heap)
        return None
