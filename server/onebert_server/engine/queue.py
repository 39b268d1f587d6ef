"""Who is next: waiting sequences are taken in fair turns between principals; pure logic, told the time by its callers.

Two levels decide. Principals take turns by deficit round robin on tokens: each gets `QUANTUM` tokens a round, so that
everybody who waits gets an equal part of the device. A principal whose next sequence needs the tokens of several rounds
has its turn in the last of them, and nobody goes through the others. Within a principal what is due first is served
first. A request is due some time after it has come, `SLACK` times the time that it takes itself: a short text goes
ahead of a long one that came slightly earlier, and what has waited for long goes ahead of whatever comes. A request
that has had `REQUEST_TURN` tokens is due anew, as if the rest of it came only then: a text never waits for a whole
fan-out.

What may wait is bounded by the wait that a request would find, in seconds, if all principals are served equally: until
its principal has been served all that waits of it, and `min(own tokens, COUNTED × max_seconds)` of the request. One
principal alone can fill the queue; a small request of another principal still finds a short wait. The principal that
holds most is refused first. Where many principals ask one text each, all that waits counts for each of them, and so all
of it together is bounded, however many they are.
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

# A request counts when it comes with its own work, but with no more than this share of the longest wait: a larger one
# is served in many turns, and finds room beside as many others of its kind as that leaves.
COUNTED = 0.25

# How many times as long as its turn takes to compute a request lets others go first that come after it and are shorter.
SLACK = 16.0
# But for no more than this share of the longest wait: the bound in seconds would mean little otherwise.
MAX_SLACK = 0.5

# How long it is remembered, in seconds, that a principal's clients leave, and of how many principals.
REMEMBERED = 10.0
MAX_REMEMBERED = 1024
# A client who leaves sooner than after this share of the longest wait had reasons of its own, such as the end of its
# program; a shorter wait would not have kept it.
LEFT_FOR_WAITING = 0.5

INFINITY = float("inf")


@dataclass(frozen=True)
class QueueLimits:
    """What may wait.

    Attributes:
        max_sequences, max_tokens: in all. A principal that has something waiting may hold no more than is left free.
        max_seconds: the longest wait, estimated, that a request may find when it comes.
    """

    max_sequences: int
    max_tokens: int
    max_seconds: float = INFINITY


class FairQueue(Generic[R]):
    """Requests whose sequences wait; not thread-safe.

    Attributes:
        sequences, tokens: that wait, of all principals.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self.sequences = self.tokens = 0
        self._limits = limits
        # Only those of whom something waits, by principal and by the rounds of their turns.
        self._flows: dict[str, Flow[R]] = {}
        self._turns: Agenda[Flow[R]] = Agenda()
        self._round = 0
        # All that waits but the server's own work.
        self._backlog = Backlog()
        self._deadlines: Agenda[R] = Agenda()
        # Of principals whose clients left: how long the last of them had waited, and when it did.
        self._patience: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, principal: str, seconds_per_token: float) -> None:
        """Refuses what `put` would refuse of this principal however small it were: quick, for before any other work.

        Raises:
            QueueFull, OverShare: see `put`.
        """
        self._refuse(principal, 1, 1, False, seconds_per_token)

    def put(self, request: R, now: float, seconds_per_token: float) -> None:
        """Lets a request wait, or refuses it; the reserved principal is not refused for what waits.

        Args:
            request: one that was never in the queue.
            now: the time.
            seconds_per_token: what a token that waits is estimated to take.

        Raises:
            TooLarge: it could never wait.
            DeadlineExceeded: it is too late already.
            QueueFull: too much waits; `retry_after` is about how long that takes.
            OverShare: too much waits, and more of this principal than of others.
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
        """Takes the next batch.

        Args:
            max_cost: tokens that it computes, in all: the sum of its sequences' costs.
            max_tokens: tokens that it holds, in all. A sequence that is over either bound still goes, alone.
            now: the time.
            beside: principals who are served already; then nothing of theirs is taken, nor a sequence over the bounds.

        Returns:
            Requests with the index of the sequence that was taken; empty only when nothing waits, or `beside` others.
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
            # Who was served beside a batch went ahead of rounds that others still have.
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
        """Removes and returns every request whose deadline has passed; forgets who left long ago."""
        while self._patience and next(iter(self._patience.values()))[1] < now - REMEMBERED:
            self._patience.popitem(last=False)
        late = []
        while (first := self._deadlines.first()) and first[0] <= now:
            self.remove(first[1])
            late.append(first[1])
        return late

    def note_left(self, principal: str, waited: float, now: float) -> None:
        """A client left after so many seconds: for a while its principal's requests may find half of that wait at most.

        The other half is for the batch under way and for their own work. What would wait for longer is refused at once
        instead of being computed for clients who leave before they are answered.
        """
        if waited < self._limits.max_seconds * LEFT_FOR_WAITING:
            return
        self._patience[principal] = waited, now
        self._patience.move_to_end(principal)
        if len(self._patience) > MAX_REMEMBERED:
            self._patience.popitem(last=False)

    def remove(self, request: R) -> int:
        """Removes what waits of a request; returns how many sequences that were."""
        flow = self._flows.get(request.principal)
        if flow is None or request not in flow:
            return 0
        progress = flow.remove(request)
        self._deadlines.drop(progress.late)
        left = request.lengths[progress.next :]
        self._count(flow, -len(left), -sum(left))
        return len(left)

    def clear(self) -> list[R]:
        """Removes and returns everything."""
        requests = [request for flow in self._flows.values() for request in flow]
        for request in requests:
            self.remove(request)
        return requests

    def _count(self, flow: Flow[R], sequences: int, tokens: int) -> None:
        """After a change of a flow: counts it, and sees to its turn."""
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
        """Seconds of work that a request of this principal may find before its own."""
        waited, _ = self._patience.get(principal, (INFINITY, 0.0))
        return min(waited / 2, self._limits.max_seconds)

    def _slack(self, tokens: int, spare: float, seconds_per_token: float) -> float:
        """Seconds for which each turn of a request lets others go first; `spare` are left to all of its turns.

        In that time more may come than is computed meanwhile: half of what is spare lasts for twice as much.
        """
        turns = ceil(tokens / REQUEST_TURN)
        own = SLACK * min(tokens, REQUEST_TURN) * seconds_per_token
        return max(min(own, MAX_SLACK * self._limits.max_seconds, spare / (2 * turns)), 0.0)

    def _refuse(self, principal: str, sequences: int, tokens: int, late: bool, seconds_per_token: float) -> None:
        """Raises why so much more of a principal may not wait, or would be answered too late."""
        waits, flow = self._backlog, self._flows.get(principal)
        if principal == RESERVED or not waits.principals:
            return
        own_sequences, own = (flow.sequences, flow.tokens) if flow else (0, 0)
        # Until so many tokens of this principal are served, of each other one as many are, or all that waits of it.
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
