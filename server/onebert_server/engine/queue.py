"""The order of waiting sequences, in fair turns between principals; pure logic, callers pass the time.

Two levels decide. Principals take turns by deficit round robin on tokens: each gets `QUANTUM` tokens per round, so that
every waiting principal gets an equal part of the device. If a principal's next sequence needs the tokens of several
rounds, its turn is in the last of them, and no code walks through the others. Within a principal the request that is
due first is served first. A request is due some time after its arrival, `SLACK` times its own compute time: a short
text goes ahead of a long one that came slightly earlier, and an old request goes ahead of every new one. A request that
has had `REQUEST_TURN` tokens is due anew, as if the rest of it had just arrived: a text never waits for a whole
fan-out.

The queue is bounded by the estimated wait of a new request, in seconds, if all principals are served equally: until its
principal has been served all of its waiting tokens, and `min(own tokens, COUNTED × max_seconds)` of the request. One
principal alone can fill the queue; a small request of another principal still finds a short wait. The principal with
the most waiting work is refused first. If many principals ask one text each, all waiting work counts for each of them,
so the whole queue is bounded for any number of principals.
"""

from collections import OrderedDict
from collections.abc import Collection
from dataclasses import dataclass
from math import ceil
from typing import Generic

from onebert_server.access.principal import RESERVED
from onebert_server.engine.agenda import Agenda
from onebert_server.engine.backlog import Backlog
from onebert_server.engine.flow import REQUEST_TURN, Flow, Progress, R
from onebert_store.errors import DeadlineExceeded, OverShare, QueueFull, TooLarge

# A new request counts with its own tokens, up to this share of the longest wait: a larger one is served in many turns,
# beside others of its kind.
COUNTED = 0.25

# A request lets later and shorter requests go first for this many times the compute time of its turn.
SLACK = 16.0
# That time is at most this share of the longest wait: otherwise the bound in seconds would mean little.
MAX_SLACK = 0.5

# Seconds for which we remember that a principal's clients left, and the number of principals.
REMEMBERED = 10.0
MAX_REMEMBERED = 1024
# A client that leaves before this share of the longest wait had other reasons, such as the end of its program; a
# shorter wait would not have kept it.
LEFT_FOR_WAITING = 0.5

INFINITY = float("inf")


@dataclass(frozen=True)
class QueueLimits:
    """Bounds on waiting work.

    Attributes:
        max_sequences, max_tokens: totals. A principal with waiting work may hold no more than is left free.
        max_seconds: longest estimated wait that a new request may find.
    """

    max_sequences: int
    max_tokens: int
    max_seconds: float = INFINITY


class FairQueue(Generic[R]):
    """Requests with waiting sequences; not thread-safe. `sequences` and `tokens` are totals over all principals."""

    def __init__(self, limits: QueueLimits) -> None:
        self.sequences = self.tokens = 0
        self._limits = limits
        # Only principals with waiting work: by name, and by the rounds of their turns.
        self._flows: dict[str, Flow[R]] = {}
        self._turns: Agenda[Flow[R]] = Agenda()
        self._round = 0
        # All waiting work but the server's own.
        self._backlog = Backlog()
        self._deadlines: Agenda[R] = Agenda()
        # Principals whose clients left -> (seconds that the last one had waited, time when it left).
        self._patience: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, principal: str, seconds_per_token: float) -> None:
        """Raises QueueFull or OverShare if `put` would refuse the smallest request of this principal; cheap."""
        self._refuse(principal, 1, 1, False, seconds_per_token)

    def put(self, request: R, now: float, seconds_per_token: float) -> None:
        """Queues a request that was never in the queue; a full queue never refuses the reserved principal.

        Raises:
            TooLarge, DeadlineExceeded: it exceeds the whole queue, or its deadline has passed.
            QueueFull, OverShare: the queue is too full; for OverShare it holds more of this principal than of others.
        """
        sequences, tokens = len(request.lengths), sum(request.lengths)
        if sequences > self._limits.max_sequences or tokens > self._limits.max_tokens:
            raise TooLarge("the request holds more than the server's whole queue; send it in parts")
        if now >= request.deadline:
            raise DeadlineExceeded("the request's time was over before its work began")
        flow = self._flows.get(request.principal)
        own = flow.tokens if flow else 0
        seconds = (self._backlog.served(own + tokens) + tokens) * seconds_per_token
        spare = request.deadline - now - seconds
        self._refuse(request.principal, sequences, tokens, spare < 0, seconds_per_token)
        progress = Progress(now + (slack := self._slack(tokens, spare, seconds_per_token)), slack)
        if request.deadline < INFINITY:
            progress.late = self._deadlines.put(request.deadline, request)
        if flow is None:
            flow = self._flows[request.principal] = Flow(request.principal, self._round + 1)
        flow.add(request, progress)
        self._count(flow, sequences, tokens)

    def take(
        self, max_cost: int, max_tokens: int, now: float, beside: Collection[str] | None = None
    ) -> list[tuple[R, int]]:
        """Takes the next batch: requests with the index of the sequence that was taken.

        Args:
            max_cost: bound on its computed tokens: the sum of its sequences' costs.
            max_tokens: bound on its tokens. A sequence over either bound still goes, alone.
            beside: principals with a running batch; takes nothing of theirs, and no sequence over the bounds.
        """
        served = [self._flows[one] for one in beside or () if one in self._flows]
        for flow in served:
            self._turns.drop(flow.place)
        taken: list[tuple[R, int]] = []
        while head := self._turns.first():
            turn, flow = head
            request, progress = flow.first()
            length, cost = request.lengths[progress.next], request.costs[progress.next]
            if (taken or beside is not None) and (cost > max_cost or length > max_tokens):
                break
            # A batch `beside` another one may take turns ahead of rounds that skipped principals still have.
            self._round = max(self._round, int(turn))
            taken.append((request, progress.next))
            max_cost -= cost
            max_tokens -= length
            if flow.advance(length, now):
                self._deadlines.drop(progress.late)
            self._count(flow, -1, -length)
        for flow in served:
            flow.place = self._turns.put(flow.turn, flow)
        return taken

    def expire(self, now: float) -> list[R]:
        """Removes and returns every request whose deadline has passed; forgets clients that left long ago."""
        while self._patience and next(iter(self._patience.values()))[1] < now - REMEMBERED:
            self._patience.popitem(last=False)
        late = []
        while (first := self._deadlines.first()) and first[0] <= now:
            self.remove(first[1])
            late.append(first[1])
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

    def remove(self, request: R) -> int:
        """Removes the waiting sequences of a request; returns their number."""
        flow = self._flows.get(request.principal)
        if flow is None or request not in flow:
            return 0
        progress = flow.remove(request)
        self._deadlines.drop(progress.late)
        left = request.lengths[progress.next :]
        self._count(flow, -len(left), -sum(left))
        return len(left)

    def clear(self) -> list[R]:
        requests = [request for flow in self._flows.values() for request in flow]
        for request in requests:
            self.remove(request)
        return requests

    def _count(self, flow: Flow[R], sequences: int, tokens: int) -> None:
        if flow.principal != RESERVED:
            self._backlog.change(sequences, flow.tokens, flow.tokens + tokens)
        flow.sequences += sequences
        flow.tokens += tokens
        self.sequences += sequences
        self.tokens += tokens
        if flow.sequences and not flow.settle(self._round) and flow.place is not None:
            return
        self._turns.drop(flow.place)
        if flow.sequences:
            flow.place = self._turns.put(flow.turn, flow)
        else:
            del self._flows[flow.principal]

    def _longest_wait(self, principal: str) -> float:
        """Returns the longest wait, in seconds, that a new request of this principal may find."""
        waited, _ = self._patience.get(principal, (INFINITY, 0.0))
        return min(waited / 2, self._limits.max_seconds)

    def _slack(self, tokens: int, spare: float, seconds_per_token: float) -> float:
        """Returns the seconds for which each turn of a request lets others go first; all turns share `spare` seconds.

        They use at most half of `spare`: more work may arrive in that time than is computed.
        """
        turns = ceil(tokens / REQUEST_TURN)
        own = SLACK * min(tokens, REQUEST_TURN) * seconds_per_token
        return max(min(own, MAX_SLACK * self._limits.max_seconds, spare / (2 * turns)), 0.0)

    def _refuse(self, principal: str, sequences: int, tokens: int, late: bool, seconds_per_token: float) -> None:
        """Raises QueueFull or OverShare if so much more of a principal may not wait, or would be answered too late."""
        waits, flow = self._backlog, self._flows.get(principal)
        if principal == RESERVED or not waits.principals:
            return
        own_sequences, own = (flow.sequences, flow.tokens) if flow else (0, 0)
        # Until this principal is served so many tokens, each other one is served the same number, or all of its work.
        counted = COUNTED * self._limits.max_seconds / seconds_per_token if seconds_per_token else INFINITY
        wait = waits.served(own + min(tokens, counted)) * seconds_per_token
        fits = own_sequences + sequences <= self._limits.max_sequences - waits.sequences
        fits = fits and own + tokens <= self._limits.max_tokens - waits.tokens
        if fits and wait < self._longest_wait(principal) and not late:
            return
        seconds = max(1, ceil(wait))
        if own * waits.principals > waits.tokens:
            raise OverShare("more of this caller's work is waiting than of others'; try again soon", seconds)
        raise QueueFull("as much work is waiting as the server holds; try again soon", seconds)
