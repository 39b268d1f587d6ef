"""The order in which waiting things are served: principals in turns, and of each the thing that is due first."""

import itertools
from bisect import bisect_left, insort
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from onebert_server.fairness.agenda import Agenda

T = TypeVar("T")


class _Flow(Generic[T]):
    """The waiting things of one principal; its turn is in `round`, with `credit`, at a `place` in the order of flows.

    `things` are sorted. No two of their numbers are equal, so the things themselves are never compared.
    """

    def __init__(self, principal: str, turn: int, credit: int) -> None:
        self.principal, self.round, self.credit = principal, turn, credit
        self.place: int | None = None
        self.things: list[tuple[float, int, T]] = []


class Turns(Generic[T]):
    """Deficit round robin (Shreedhar and Varghese) over principals; things are hashable. Not thread-safe.

    Each principal is served `quantum` per round. If its next thing costs several rounds, its turn is in the last of
    them, and no code walks through the others: each operation takes O(log n) steps for n principals.

    Args:
        cost: returns what serving the next part of a thing costs. With the quantum of 1, principals are served one
            thing each per round.
    """

    def __init__(self, quantum: int = 1, cost: Callable[[T], int] = lambda _: 1) -> None:
        self._quantum = quantum
        self._cost = cost
        self._round = 0
        self._flows: dict[str, _Flow[T]] = {}
        self._order: Agenda[_Flow[T]] = Agenda()
        # With its flow, and its due time and number there.
        self._waiting: dict[T, tuple[_Flow[T], float, int]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting)

    def put(self, thing: T, principal: str, due: float = 0.0) -> None:
        """Queues a thing for a principal, first in first out among those due at the same time; once, if it waits."""
        if thing in self._waiting:
            return
        flow = self._flows.get(principal)
        if flow is None:
            flow = self._flows[principal] = _Flow(principal, self._round + 1, self._quantum)
        self._put(thing, flow, due)
        self._settle(flow)

    def remove(self, thing: T) -> None:
        """Removes a waiting thing; this costs its principal nothing."""
        self._settle(self._drop(thing))

    def first(self) -> T | None:
        """Returns the thing that is served next; None if nothing waits."""
        flow = self._order.first()
        return None if flow is None else flow.things[0][2]

    def take(self, wanted: Callable[[T], bool]) -> T | None:
        """Takes the next wanted thing; None if nothing waits. An unwanted thing is dropped and costs no turn."""
        while (thing := self.first()) is not None:
            if wanted(thing):
                self.serve(thing)
                return thing
            self.remove(thing)
        return None

    def serve(self, first: T, cost: int = 1, left: bool = False, due: float | None = None) -> None:
        """Charges the principal of the first thing; what is `left` of it waits on, in its place or due anew."""
        flow = self._waiting[first][0]
        self._round = max(self._round, flow.round)
        flow.credit -= cost
        if not left or due is not None:
            self._drop(first)
        if left and due is not None:
            self._put(first, flow, due)
        self._settle(flow)

    @contextmanager
    def without(self, principals: Iterable[str]) -> Iterator[None]:
        """Passes over some principals, for which nothing may be put meanwhile; they keep their rounds."""
        flows = [self._flows[one] for one in principals if one in self._flows]
        for flow in flows:
            self._order.drop(flow.place)
        try:
            yield
        finally:
            for flow in flows:
                flow.place = self._order.put(flow.round, flow)

    def _put(self, thing: T, flow: _Flow[T], due: float) -> None:
        number = next(self._numbers)
        insort(flow.things, (due, number, thing))
        self._waiting[thing] = flow, due, number

    def _drop(self, thing: T) -> _Flow[T]:
        flow, due, number = self._waiting.pop(thing)
        del flow.things[bisect_left(flow.things, (due, number))]
        return flow

    def _settle(self, flow: _Flow[T]) -> None:
        """Moves a principal's turn to the first round with credit for its first thing.

        The turn never moves back to a round that is over, nor out of a round that it still has credit for.
        """
        if not flow.things:
            self._order.drop(flow.place)
            del self._flows[flow.principal]
            return
        spare = flow.credit - self._cost(flow.things[0][2])
        rounds = min(max(flow.round - self._round - 1, 0), spare // self._quantum)
        if rounds or flow.place is None:
            flow.round -= rounds
            flow.credit -= rounds * self._quantum
            self._order.drop(flow.place)
            flow.place = self._order.put(flow.round, flow)
