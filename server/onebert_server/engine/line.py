"""The order of waiting requests; pure logic, callers pass the time.

One rule has two uses (`LeastServed`): the next principal is the one that was served least, and so is the next of its
requests. A request is served in pieces of `QUANTUM` computed tokens, at least one sequence, so that a short text waits
for a piece of others, never for a fan-out. A newcomer begins a piece ahead of all that wait, but not ahead of what its
principal was served before.
"""

from heapq import heapify, heappop, heappush, heapreplace
from itertools import count
from math import inf
from typing import Generic, Protocol, TypeVar

from onebert_server.engine.request import QUANTUM, Request, Room

# However many requests of a principal come, one that waits is served so much of what the principal is.
LEAST_PART = 16
# Above this many, principals that owe nothing any more are forgotten.
_MANY = 4096


class Totals:
    """Counts of what waits: sequences, their tokens, and computed tokens (`work`)."""

    sequences = tokens = work = 0


class _Child(Protocol):
    """A child of `LeastServed`; it is served while something of it `waits`."""

    waits: bool

    def serve(self, room: Room, lead: float) -> list[int]: ...


C = TypeVar("C", bound=_Child)


class LeastServed(Totals, Generic[C]):
    """Children that are served piece by piece; the next one is the one that was served least.

    A newcomer begins a piece before the `clock`. The clock stands where the child that was served last stood, or
    further: each piece moves it by an equal part for each child. So nobody waits for ever beside ever new ones, and
    each is served at least one in `parts` pieces.
    """

    def __init__(self, parts: float = inf) -> None:
        self.clock = 0.0
        self._parts = parts
        self._heap: list[tuple[float, int, C]] = []
        self._numbers = count()
        self._emptied = 0

    def join(self, child: C, served: float = 0.0) -> None:
        heappush(self._heap, (max(served, self.clock - QUANTUM), next(self._numbers), child))

    def serve(self, room: Room, lead: float = inf) -> list[int]:
        """Has one child put pieces into a batch as long as it is next, and they cost less than `lead`.

        Returns the costs of the pieces: at least one, unless no more fits.
        """
        pieces = list[int]()
        while self._heap and not pieces:
            served, _, child = self._heap[0]
            if child.waits:
                behind = min(self._heap[1:3])[0] - served if len(self._heap) > 1 else inf
                pieces = child.serve(room, min(lead, behind))
                parts = min(len(self._heap) + 1, self._parts)
                for cost in pieces:
                    self.clock = max(served, self.clock + cost / parts)
                    served += cost
            if not child.waits:
                heappop(self._heap)
                self.leave(child, served)
            elif pieces:
                heapreplace(self._heap, (served, next(self._numbers), child))
            else:
                break
        return pieces

    def note_emptied(self) -> None:
        """Notes that a child left without being served; it goes when it is next, or when it is one of many."""
        self._emptied += 1
        if 2 * self._emptied > len(self._heap):
            entries, self._emptied = self._heap, 0
            self._heap = [entry for entry in entries if entry[2].waits]
            heapify(self._heap)
            for served, _, child in entries:
                if not child.waits:
                    self.leave(child, served)

    def leave(self, child: C, served: float) -> None:
        """Nothing of a child waits any more; it was served so much."""


class Flow(LeastServed[Request]):
    """The waiting requests of a principal."""

    def __init__(self, principal: str, *counted: Totals) -> None:
        """`counted`: more totals, in which it is counted."""
        super().__init__(LEAST_PART)
        self.principal, self.waits = principal, False
        self._counted = counted

    def put(self, request: Request) -> None:
        request.flow = self
        self.count(len(request.sequences), request.tokens[-1], request.costs[-1])
        self.join(request)

    def count(self, sequences: int, tokens: int, work: int) -> None:
        """Counts what comes to wait, or with negative numbers what no longer does."""
        for totals in (self, *self._counted):
            totals.sequences += sequences
            totals.tokens += tokens
            totals.work += work
        self.waits = self.sequences > 0


class Line(LeastServed[Flow]):
    """The waiting requests of one host.

    Attributes:
        flows: by principal.
        shadows: the flow for idle time; it does not count.
        batch_tokens: the fewest computed tokens of a batch that lose no capacity of the device. The engine keeps this
            and the next two.
        most_tokens: of a batch; tokens that are computed once for several sequences count for each.
        seconds_per_token: the estimate of a computed token.
        since: when it gave its last batch, or began to wait.
    """

    def __init__(self, queue: Totals, shadows: Totals) -> None:
        """`queue`, `shadows`: the totals of all lines."""
        super().__init__()
        self.flows: dict[str, Flow] = {}
        self.shadows = Flow("shadows", shadows)
        self.batch_tokens = self.most_tokens = 1
        self.seconds_per_token = self.since = 0.0
        self._queue = queue
        # Amounts that absent principals were served, as long as others wait: leaving and coming again gains nothing.
        self._served: dict[str, float] = {}
        self._many = _MANY

    @property
    def seconds(self) -> float:
        return self.work * self.seconds_per_token

    def put(self, request: Request, now: float) -> None:
        if not self.sequences:
            self.since = now
        flow = self.flows.get(request.principal)
        if flow is None:
            flow = self.flows[request.principal] = Flow(request.principal, self, self._queue)
            self.join(flow, self._served.pop(request.principal, 0.0))
        flow.put(request)

    def drop(self, request: Request) -> None:
        """Withdraws what waits of a request."""
        flow = request.flow
        request.take(len(request.sequences))
        flow.note_emptied()
        if not flow.waits and flow is not self.shadows:
            self.note_emptied()

    def leave(self, child: Flow, served: float) -> None:
        del self.flows[child.principal]
        self._served[child.principal] = served
        if not self.flows:
            self._served.clear()
        elif len(self._served) > self._many:
            self._served = {name: served for name, served in self._served.items() if served > self.clock}
            self._many = max(_MANY, 2 * len(self._served))
