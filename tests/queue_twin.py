"""The queue one sequence after another, with requests as objects: the brute-force twin of `FairQueue`."""

import heapq
import itertools
from bisect import bisect_left, insort
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil, inf
from typing import Any, Generic, NamedTuple, TypeVar

from onebert_server.access.principal import RESERVED
from onebert_server.engine.queue.backlog import (
    COUNTED,
    INFINITY,
    LEFT_FOR_WAITING,
    MAX_REMEMBERED,
    MAX_SLACK,
    REMEMBERED,
    SLACK,
    QueueLimits,
)
from onebert_server.engine.queue.fair_queue import MAX_PASSED_OVER, QUANTUM
from onebert_server.engine.queue.waiting import REQUEST_TURN
from onebert_server.fairness.shares import Shares
from onebert_store.errors import DeadlineExceeded, OverShare, QueueFull, TooLarge

T = TypeVar("T")
Request = Any
Host = Any
Beside = Any
Bounds = Callable[[Host], tuple[int, int]]


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

    def put(self, when: float, thing: T, place: int | None = None) -> int:
        """Adds a thing; returns its place, for `drop`."""
        place = next(self._places) if place is None else place
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


class _Flow(Generic[T]):
    """The waiting things of one principal; its turn is in `round`, with `credit`.

    `things` are sorted, by kind. No two of their numbers are equal, so the things themselves are never compared.
    `places` are its places in the orders of flows. One that is `held_back` has a place in the order of its first
    thing's kind alone.
    """

    def __init__(self, principal: str, turn: int, credit: int) -> None:
        self.principal, self.round, self.credit = principal, turn, credit
        self.held_back = False
        # One for all kinds: when it came to its round.
        self.place = 0
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
            flow.place = next(self._places)
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
                flow.place = next(self._places)
                self._list(flow)

    def _least(self) -> int:
        """Returns the first round in which anybody has a turn, or a newcomer would have one."""
        head = self._head()
        return self._round + 1 if head is None else min(self._round + 1, head.round)

    def _head(self) -> _Flow[T] | None:
        heads = [head for order in self._orders.values() if (head := order.head()) is not None]
        return min(heads, key=lambda head: head[:2])[2] if heads else None

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
            flow.place = next(self._places)
            for kind, place in flow.places.items():
                self._orders[kind].drop(place)
                flow.places[kind] = self._orders[kind].put(flow.round, flow, flow.place)
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
            flow.places[kind] = self._orders[kind].put(flow.round, flow, flow.place)

    def _unlist(self, flow: _Flow[T]) -> None:
        while flow.places:
            kind, place = flow.places.popitem()
            self._orders[kind].drop(place)


class Backlog(Shares):
    """Waiting work, which principals have served in equal parts."""

    def __init__(self, most: int) -> None:
        super().__init__(most)
        # Bit length of a principal's amount -> [number of such principals, sum of their amounts].
        self._levels: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])

    def add(self, principal: str, amount: int) -> int:
        after = super().add(principal, amount)
        for held, count in ((after - amount, -1), (after, 1)):
            if held:
                level = self._levels[held.bit_length()]
                level[0] += count
                level[1] += count * held
        return after

    def least(self) -> int:
        """Returns the least amount that a principal holds, or as little as half of it; 0 if nobody holds any."""
        return min((2 ** (level - 1) for level, (count, _) in self._levels.items() if count), default=0)

    def served(self, amount: float) -> float:
        """Estimates the work that is served until each principal has had this amount, or all of its own work.

        The estimate is 1 to 1.21 times the true sum: it lumps together principals whose amounts have the same bit
        length as `amount`.
        """
        # A copy, so that one thread may ask while another one counts.
        return sum(min(held, count * amount) for count, held in [*self._levels.values()])


@dataclass
class Progress:
    """The progress of a request through the queue.

    Attributes:
        slack: seconds between the moment when one of its turns begins to wait and the moment when it is due.
        late: its place among the deadlines; None if it has no deadline.
        next: index of its next sequence.
        turn: tokens that are left of its turn.
        anew: whether a turn begins.
    """

    slack: float
    late: int | None = None
    next: int = 0
    turn: int = REQUEST_TURN
    anew: bool = False


class FairQueueTwin:
    """Requests with waiting sequences; not thread-safe, but any thread may `check`.

    Attributes:
        sequences, tokens: totals over all principals.
        seconds_per_token: the estimate that turns waiting work into seconds; the engine keeps it.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self.sequences = self.tokens = self._work = 0
        self.seconds_per_token = 0.0
        self._limits = limits
        self._progress: dict[Request, Progress] = {}
        self._turns: Turns[Request] = Turns(QUANTUM, lambda request: request.work[self._progress[request].next])
        self._deadlines: Agenda[Request] = Agenda()
        self._tokens_of: Counter[Host] = Counter()
        # All waiting work but the server's own.
        self._sequences, self._tokens = Shares(limits.max_sequences), Backlog(limits.max_tokens)
        # Principals whose clients left -> (seconds that the last one had waited, time when it left).
        self._patience: OrderedDict[str, tuple[float, float]] = OrderedDict()

    @property
    def seconds(self) -> float:
        """Estimated seconds of all waiting work."""
        return self._work * self.seconds_per_token

    def flood_seconds(self, each: float) -> float:
        """Returns the seconds of waiting work in a flood, if each waiting principal has `each` seconds of it; else 0.

        Some need twice as much, since `Backlog.least` estimates. The server's own work does not count. A short request
        that is next, among larger ones than a batch, does not wait for a longer batch of these.
        """
        first = self._turns.first()
        if first is None or self._tokens.least() * self.seconds_per_token < each:
            return 0.0
        of_first = sum(first.work[self._progress[first].next :]) * self.seconds_per_token
        mean = self.seconds / len(self._progress)
        return 0.0 if of_first < each < mean else self._tokens.total * self.seconds_per_token

    def check(self, principal: str) -> None:
        """Raises QueueFull or OverShare if `put` would refuse the smallest request of this principal; cheap."""
        self._refuse(principal, 1, 1, self._wait(principal, min(1, self._counted)), late=False)

    def put(self, requests: Sequence[Request], now: float) -> None:
        """Queues requests that were never in the queue, all of them or none; one caller's, each of another base.

        A full queue never refuses the reserved principal.

        Raises:
            TooLarge, DeadlineExceeded: they exceed the whole queue, or their deadline has passed.
            QueueFull, OverShare: the queue is too full; for OverShare it holds more of this principal than of others.
        """
        principal, deadline = requests[0].principal, requests[0].deadline
        amounts = [_amounts(request) for request in requests]
        sequences, tokens, work = amounts[0] if len(amounts) == 1 else map(sum, zip(*amounts, strict=True))
        if sequences > self._limits.max_sequences or tokens > self._limits.max_tokens:
            raise TooLarge("the request holds more than the server's whole queue; send it in parts")
        if now >= deadline:
            raise DeadlineExceeded("the request's time was over before its work began")
        wait = self._wait(principal, work)
        spare = deadline - now - wait - work * self.seconds_per_token
        if work > self._counted:
            wait = self._wait(principal, self._counted)
        self._refuse(principal, sequences, work, wait, late=spare < 0)
        slack = self._slack(work, spare)
        for request, of_request in zip(requests, amounts, strict=True):
            progress = self._progress[request] = Progress(slack)
            if deadline < INFINITY:
                progress.late = self._deadlines.put(deadline, request)
            self._turns.put(request, principal, now + slack, request.host)
            self._tokens_of[request.host] += of_request[1]
            self._count(request, *of_request)

    def fills(self, bounds: Bounds) -> bool:
        """Whether more computed tokens of the next batch's base may wait than the batch takes."""
        first = self._turns.first()
        return first is not None and self._tokens_of[first.host] > bounds(first.host)[0]

    def others_wait(self, principals: Collection[str]) -> bool:
        """Whether anybody but these principals waits."""
        return self._turns.others_wait(principals)

    def may_run_beside(self, principal: str, batch: Beside) -> bool:
        """Whether `take_beside` may take a waiting principal's work, unless its next text is too long."""
        return principal not in batch.served and self._turns.may_go_ahead(principal, _rounds(batch))

    def take(self, bounds: Bounds, now: float) -> list[tuple[Request, int]]:
        """Takes the next batch: requests of one base, with the index of the sequence that was taken.

        A first sequence over either bound still goes, alone.
        """
        first = self._turns.first()
        return [] if first is None else self._take(first, bounds, now)

    def take_beside(self, batch: Beside, bounds: Bounds, now: float) -> list[tuple[Request, int]]:
        """Takes what runs between the layers of a batch: no sequence over its room."""
        with self._turns.ahead(_rounds(batch), batch.served) as pass_over:
            for _ in range(MAX_PASSED_OVER):
                request = self._turns.first()
                if request is None:
                    break
                if request.work[self._progress[request].next] <= batch.room:
                    return self._take(request, bounds, now, batch.room)
                pass_over(request)
        return []

    def _take(self, first: Request, bounds: Bounds, now: float, room: float = INFINITY) -> list[tuple[Request, int]]:
        taken: list[tuple[Request, int]] = []
        host = first.host
        request: Request | None = first
        max_cost, max_tokens = bounds(host)
        self._tokens_of[host] -= max_tokens
        while request is not None:
            progress = self._progress[request]
            length, cost = request.lengths[progress.next], request.costs[progress.next]
            if taken and (cost > max_cost or length > max_tokens or request.work[progress.next] > room):
                break
            taken.append((request, progress.next))
            max_cost -= cost
            max_tokens -= length
            self._advance(request, progress, now)
            # A text beside a batch is computed once for all its tasks, as far as they fit.
            if room == INFINITY or not self._repeats(request):
                request = self._turns.first_of(host)
        self._tokens_of[host] += max_tokens
        self._turns.hold_back()
        return taken

    def expire(self, now: float) -> list[Request]:
        """Removes and returns every request whose deadline has passed; forgets clients that left long ago."""
        while self._patience and next(iter(self._patience.values()))[1] < now - REMEMBERED:
            self._patience.popitem(last=False)
        late = []
        while (first := self._deadlines.first()) is not None and first.deadline <= now:
            self.remove(first)
            late.append(first)
        return late

    def note_left(self, principal: str, waited: float, now: float) -> None:
        """Records that a client left after so many seconds; for a while its principal may find half of that wait.

        The other half is for the running batch and for their own work. A request that would wait longer is refused at
        once, so that nothing is computed for clients that leave before the answer.
        """
        if waited < self._limits.max_seconds * LEFT_FOR_WAITING:
            return
        self._patience[principal] = waited, now
        self._patience.move_to_end(principal)
        if len(self._patience) > MAX_REMEMBERED:
            self._patience.popitem(last=False)

    def remove(self, request: Request) -> int:
        """Removes the waiting sequences of a request; returns their number."""
        progress = self._progress.get(request)
        if progress is None:
            return 0
        self._turns.remove(request)
        self._forget(request)
        left = request.lengths[progress.next :]
        self._tokens_of[request.host] -= sum(left)
        self._count(request, -len(left), -sum(left), -sum(request.work[progress.next :]))
        return len(left)

    def clear(self) -> list[Request]:
        requests = list(self._progress)
        for request in requests:
            self.remove(request)
        return requests

    def _repeats(self, request: Request) -> bool:
        """Whether the next sequence of a request has the text of an earlier one of its turn."""
        progress = self._progress.get(request)
        shares = progress is not None and request.costs[progress.next] < request.lengths[progress.next]
        return shares and not progress.anew

    def _advance(self, request: Request, progress: Progress, now: float) -> None:
        """Records that a request's next sequence was taken."""
        length, work = request.lengths[progress.next], request.work[progress.next]
        progress.next += 1
        progress.turn -= work
        progress.anew = progress.turn <= 0
        if progress.next == len(request.lengths):
            self._turns.serve(request, work)
            self._forget(request)
        elif progress.turn > 0:
            self._turns.serve(request, work, left=True)
        else:
            progress.turn += REQUEST_TURN
            self._turns.serve(request, work, left=True, due=now + progress.slack)
        self._count(request, -1, -length, -work)

    def _forget(self, request: Request) -> None:
        self._deadlines.drop(self._progress.pop(request).late)

    def _count(self, request: Request, sequences: int, tokens: int, work: int) -> None:
        self.sequences += sequences
        self.tokens += tokens
        self._work += work
        if request.principal != RESERVED:
            self._sequences.add(request.principal, sequences)
            self._tokens.add(request.principal, work)

    @property
    def _counted(self) -> float:
        """The work of a new request that count at most for its wait."""
        return COUNTED * self._limits.max_seconds / self.seconds_per_token if self.seconds_per_token else INFINITY

    def _wait(self, principal: str, work: float) -> float:
        """Returns the seconds until a principal has been served its waiting work, and so much more.

        Until then each other principal is served as much, or all of its work.
        """
        return self._tokens.served(self._tokens.of(principal) + work) * self.seconds_per_token

    def _longest_wait(self, principal: str) -> float:
        """Returns the longest wait, in seconds, that a new request of this principal may find."""
        waited, _ = self._patience.get(principal, (INFINITY, 0.0))
        return min(waited / 2, self._limits.max_seconds)

    def _slack(self, work: int, spare: float) -> float:
        """Returns the seconds for which each turn of a request lets others go first; all turns share `spare` seconds.

        They use at most half of `spare`: more work may arrive in that time than is computed.
        """
        turns = ceil(work / REQUEST_TURN)
        own = SLACK * min(work, REQUEST_TURN) * self.seconds_per_token
        return max(min(own, MAX_SLACK * self._limits.max_seconds, spare / (2 * turns)), 0.0)

    def _refuse(self, principal: str, sequences: int, work: int, wait: float, late: bool) -> None:
        """Raises QueueFull or OverShare if so much more of a principal may not wait, or would be answered too late."""
        if principal == RESERVED or not self._tokens.principals:
            return
        fits = self._sequences.fits(principal, sequences) and self._tokens.fits(principal, work)
        if fits and wait < self._longest_wait(principal) and not late:
            return
        seconds = max(1, ceil(wait))
        if self._tokens.is_over(principal):
            raise OverShare("more of this caller's work is waiting than of others'; try again soon", seconds)
        raise QueueFull("as much work is waiting as the server holds; try again soon", seconds)


def _rounds(batch: Beside) -> int:
    """Returns by how many rounds a principal may be ahead of all others while a batch runs."""
    return int(batch.room / QUANTUM)


def _amounts(request: Request) -> tuple[int, int, int]:
    """Returns the sequences, the tokens and the work of a request."""
    tokens = sum(request.lengths)
    return len(request.lengths), tokens, tokens if request.work is request.lengths else sum(request.work)
