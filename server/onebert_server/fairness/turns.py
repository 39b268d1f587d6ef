"""The order in which waiting things are served: principals in turns, and of each the thing that is due first."""

import itertools
from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator
from contextlib import contextmanager
from math import inf
from typing import Generic, NamedTuple, TypeVar

from onebert_server.fairness.agenda import Agenda

T = TypeVar("T")


class _Flow(Generic[T]):
    """The waiting things of one principal; its turn is in `round`, with `credit`.

    `things` are sorted, by kind. No two of their numbers are equal, so the things themselves are never compared.
    `places` are its places in the orders of flows. One that is `held_back` has a place in the order of its first
    thing's kind alone.
    """

    def __init__(self, principal: str, turn: int, credit: int) -> None:
        self.principal, self.round, self.credit = principal, turn, credit
        self.held_back = False
        self.places: dict[Hashable, int] = {}
        self.things: dict[Hashable, list[tuple[float, int, T]]] = {}

    @property
    def first(self) -> T:
        if len(self.things) == 1:
            [things] = self.things.values()
            return things[0][2]
        return min(things[0] for things in self.things.values())[2]


class _Where(NamedTuple, Generic[T]):
    """The place of a waiting thing: its flow, its kind, and its due time and number there."""

    flow: _Flow[T]
    kind: Hashable
    due: float
    number: int


class Turns(Generic[T]):
    """Deficit round robin (Shreedhar and Varghese) over principals; things are hashable. Not thread-safe.

    Each principal is served `quantum` per round. If its next thing costs several rounds, its turn is in the last of
    them, and no code walks through the others: each operation takes O(log n) steps for n principals.

    Things may be of several kinds that are served in batches of one kind. A batch then takes things of its kind ahead
    of other things of the same principal, which pays for them from its own turns.

    Principals may be served `ahead` of their turns. They keep the turns that they have then, also if they leave and
    come back before the others are as far.

    Args:
        cost: returns what serving the next part of a thing costs. With the quantum of 1, principals are served one
            thing each per round.
    """

    def __init__(self, quantum: int = 1, cost: Callable[[T], int] = lambda _: 1) -> None:
        self._quantum = quantum
        self._cost = cost
        self._round = 0
        # Only turns up to this round are served.
        self._last = inf
        self._flows: dict[str, _Flow[T]] = {}
        # Round and credit of principals that left while they were ahead.
        self._gone: OrderedDict[str, tuple[int, int]] = OrderedDict()
        # The flows with things of each kind, by their rounds.
        self._orders: dict[Hashable, Agenda[_Flow[T]]] = {}
        self._places = itertools.count()
        self._overtaken: set[_Flow[T]] = set()
        self._waiting: dict[T, _Where[T]] = {}
        self._numbers = itertools.count()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[T]:
        return iter(self._waiting)

    def put(self, thing: T, principal: str, due: float = 0.0, kind: Hashable = None) -> None:
        """Queues a thing for a principal, first in first out among those due at the same time; once, if it waits."""
        if thing in self._waiting:
            return
        flow = self._flows.get(principal)
        if flow is None:
            turn, credit = self._gone.pop(principal, (0, 0))
            if not self._is_ahead(turn, credit):
                turn, credit = self._round + 1, self._quantum
            flow = self._flows[principal] = _Flow(principal, turn, credit)
        self._put(thing, flow, kind, due)
        self._settle(flow)

    def remove(self, thing: T) -> None:
        """Removes a waiting thing; this costs its principal nothing."""
        self._settle(self._drop(thing))

    def first(self) -> T | None:
        """Returns the thing that is served next; None if nothing waits."""
        flow = self._head()
        return None if flow is None or flow.round > self._last else flow.first

    def first_of(self, kind: Hashable) -> T | None:
        """Returns the next thing of a kind, by the first principal in turn; None if no principal may be served one."""
        head = self._orders[kind].head() if kind in self._orders else None
        return None if head is None or head[0] > self._last else head[2].things[kind][0][2]

    def take(self, wanted: Callable[[T], bool]) -> T | None:
        """Takes the next wanted thing; None if nothing waits. An unwanted thing is dropped and costs no turn."""
        while (thing := self.first()) is not None:
            if wanted(thing):
                self.serve(thing)
                return thing
            self.remove(thing)
        return None

    def serve(self, thing: T, cost: int = 1, left: bool = False, due: float | None = None) -> None:
        """Charges a principal for a thing of `first` or `first_of`; one that is `left` waits on, maybe due anew."""
        flow, kind, _, _ = self._waiting[thing]
        # This runs for every sequence; with one kind the thing is the first of all.
        several = len(self._orders) > 1
        if self._last == inf:
            self._round = max(self._round, ((self._head() or flow) if several else flow).round)
        if several and flow.first is thing:
            flow.held_back = False
        elif several:
            self._overtaken.add(flow)
        flow.credit -= cost
        if not left or due is not None:
            self._drop(thing)
        if left and due is not None:
            self._put(thing, flow, kind, due)
        self._settle(flow)

    def hold_back(self) -> None:
        """Ends a batch: a principal whose first thing was overtaken is served that thing before any of other kinds.

        So a kind waits for one batch of each other kind at most, however much of these its principal asks for.
        """
        for flow in self._overtaken:
            if flow.things:
                flow.held_back = True
                self._list(flow)
        self._overtaken.clear()

    def others_wait(self, principals: Collection[str]) -> bool:
        """Whether anybody but these principals has a waiting thing."""
        return len(self._flows) > sum(one in self._flows for one in principals)

    def may_go_ahead(self, principal: str, rounds: int) -> bool:
        """Whether a principal is at most so many rounds ahead of all others."""
        flow = self._flows.get(principal)
        return flow is not None and flow.round <= self._least() + rounds

    @contextmanager
    def ahead(self, rounds: int, but: Iterable[str]) -> Iterator[Callable[[T], None]]:
        """Serves principals that may go ahead (`may_go_ahead`), except `but`; nothing may be put meanwhile.

        The block may pass over the principal of a waiting thing, too, by calling the function that it gets. The round
        does not move: a newcomer does not wait for the principals that are ahead.
        """
        passed = list[_Flow[T]]()

        def pass_over(flow: _Flow[T]) -> None:
            self._unlist(flow)
            passed.append(flow)

        self._last = self._least() + rounds
        for one in but:
            if one in self._flows:
                pass_over(self._flows[one])
        try:
            yield lambda thing: pass_over(self._waiting[thing].flow)
        finally:
            self._last = inf
            for flow in passed:
                self._list(flow)

    def _least(self) -> int:
        """Returns the first round in which anybody has a turn, or a newcomer would have one."""
        head = self._head()
        return self._round + 1 if head is None else min(self._round + 1, head.round)

    def _head(self) -> _Flow[T] | None:
        heads = [head for order in self._orders.values() if (head := order.head()) is not None]
        return min(heads)[2] if heads else None

    def _put(self, thing: T, flow: _Flow[T], kind: Hashable, due: float) -> None:
        number = next(self._numbers)
        insort(flow.things.setdefault(kind, []), (due, number, thing))
        self._waiting[thing] = _Where(flow, kind, due, number)

    def _drop(self, thing: T) -> _Flow[T]:
        flow, kind, due, number = self._waiting.pop(thing)
        things = flow.things[kind]
        del things[bisect_left(things, (due, number))]
        if not things:
            del flow.things[kind]
        return flow

    def _settle(self, flow: _Flow[T]) -> None:
        """Moves a principal's turn to the first round with credit for its first thing.

        The turn never moves back to a round that is over, nor out of a round that it still has credit for.
        """
        if not flow.things:
            self._unlist(flow)
            del self._flows[flow.principal]
            self._keep(flow)
            return
        spare = flow.credit - self._cost(flow.first)
        rounds = min(max(flow.round - self._round - 1, 0), spare // self._quantum)
        if rounds:
            flow.round -= rounds
            flow.credit -= rounds * self._quantum
            for kind, place in flow.places.items():
                self._orders[kind].drop(place)
                flow.places[kind] = self._orders[kind].put(flow.round, flow)
        if flow.held_back or flow.places.keys() != flow.things.keys():
            self._list(flow)

    def _keep(self, gone: _Flow[T]) -> None:
        """Remembers the turn of a principal that leaves while it is ahead; forgets turns that are no longer ahead."""
        while self._gone and not self._is_ahead(*next(iter(self._gone.values()))):
            self._gone.popitem(last=False)
        if self._is_ahead(gone.round, gone.credit):
            self._gone[gone.principal] = gone.round, gone.credit

    def _is_ahead(self, turn: int, credit: int) -> bool:
        """Whether a principal with this turn comes behind a newcomer."""
        return (turn - self._round) * self._quantum > credit

    def _list(self, flow: _Flow[T]) -> None:
        """Gives a flow the places that it lacks."""
        kinds = {self._waiting[flow.first].kind} if flow.held_back else flow.things.keys()
        for kind in flow.places.keys() - kinds:
            self._orders[kind].drop(flow.places.pop(kind))
        for kind in kinds - flow.places.keys():
            if kind not in self._orders:
                self._orders[kind] = Agenda(self._places)
            flow.places[kind] = self._orders[kind].put(flow.round, flow)

    def _unlist(self, flow: _Flow[T]) -> None:
        while flow.places:
            kind, place = flow.places.popitem()
            self._orders[kind].drop(place)
