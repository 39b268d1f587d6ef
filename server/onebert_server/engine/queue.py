"""Who is next: waiting sequences are taken in fair turns between principals; pure logic, told the time by its callers.

Two levels decide. Principals take turns by deficit round robin on tokens: each gets `QUANTUM` tokens a turn, so that
everybody who waits gets an equal part of the device. Within a principal what is due first is served first. A request is
due some time after it has come, `SLACK` times the time that it takes itself: a short text goes ahead of a long one that
came slightly earlier, and what has waited for long goes ahead of whatever comes. A request that has had `REQUEST_TURN`
tokens is due anew, as if the rest of it came only then: a text never waits for a whole fan-out.

What may wait is bounded by the wait that a request would find, in seconds: what must be served before its own work
begins, if all principals are served equally. One principal alone can fill the queue; a newcomer finds no wait at all.
"""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Generic

from onebert_server.access.principal import RESERVED
from onebert_server.engine.flow import QUANTUM, REQUEST_TURN, Flow, Progress, R
from onebert_store.errors import DeadlineExceeded, OverShare, QueueFull, TooLarge

# How many times as long as its turn takes to compute a request lets others go first that come after it and are shorter.
SLACK = 16.0
# But for no more than this share of the longest wait: the bound in seconds would mean little otherwise.
MAX_SLACK = 0.5

# Deadlines of requests that no longer wait are dropped when there are so many of them more than requests that wait.
MAX_STALE = 1024

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
        # In the order of their turns; only those of whom something waits.
        self._flows: OrderedDict[str, Flow[R]] = OrderedDict()
        # A heap of deadlines with the numbers of their requests. It keeps deadlines of requests that no longer wait,
        # until there are too many of them, and so it holds no request: one that was answered keeps its answers.
        self._deadlines: list[tuple[float, int]] = []
        self._waiting: dict[int, R] = {}
        self._numbers = itertools.count()
        # Of principals whose clients left: how long the last of them had waited, and when it did.
        self._patience: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def check(self, principal: str, seconds_per_token: float) -> None:
        """Refuses what `put` would refuse of this principal however small it were: quick, for before any other work.

        Raises:
            QueueFull, OverShare: see `put`.
        """
        self._refuse(self._askers(), principal, 1, 1, False, seconds_per_token)

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
        flows = self._askers()
        spare = request.deadline - now - self._until_done(flows, request.principal, tokens) * seconds_per_token
        self._refuse(flows, request.principal, sequences, tokens, spare < 0, seconds_per_token)
        slack = self._slack(tokens, spare, seconds_per_token)
        number = next(self._numbers)
        if request.principal not in self._flows:
            self._flows[request.principal] = Flow()
        self._flows[request.principal].add(request, Progress(number, now + slack, slack))
        self._waiting[number] = request
        self._count(request.principal, sequences, tokens)
        if request.deadline < INFINITY:
            self._note_deadline(request.deadline, number)

    def take(self, max_cost: int, max_tokens: int, now: float) -> list[tuple[R, int]]:
        """Takes the next batch.

        Args:
            max_cost: tokens that it computes, in all: the sum of its sequences' costs.
            max_tokens: tokens that it holds, in all. A sequence that is over either bound still goes, alone.
            now: the time.

        Returns:
            Requests with the index of the sequence that was taken; empty only when nothing waits.
        """
        taken: list[tuple[R, int]] = []
        while self._flows:
            principal, flow = next(iter(self._flows.items()))
            request, progress = flow.first()
            length, cost = request.lengths[progress.next], request.costs[progress.next]
            if length > flow.credit:
                flow.credit += QUANTUM
                self._flows.move_to_end(principal)
                continue
            if taken and (cost > max_cost or length > max_tokens):
                break
            taken.append((request, progress.next))
            max_cost -= cost
            max_tokens -= length
            if flow.advance(length, now):
                del self._waiting[progress.number]
            self._count(principal, -1, -length)
        return taken

    def expire(self, now: float) -> list[R]:
        """Removes and returns every request whose deadline has passed; forgets who left long ago."""
        while self._patience and next(iter(self._patience.values()))[1] < now - REMEMBERED:
            self._patience.popitem(last=False)
        late = []
        while self._deadlines and self._deadlines[0][0] <= now:
            _, number = heapq.heappop(self._deadlines)
            if request := self._waiting.get(number):
                self.remove(request)
                late.append(request)
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
        if not self._waits(request):
            return 0
        progress = self._flows[request.principal].remove(request)
        del self._waiting[progress.number]
        left = request.lengths[progress.next :]
        self._count(request.principal, -len(left), -sum(left))
        return len(left)

    def clear(self) -> list[R]:
        """Removes and returns everything."""
        requests = list(self._waiting.values())
        for request in requests:
            self.remove(request)
        return requests

    def _note_deadline(self, deadline: float, number: int) -> None:
        heapq.heappush(self._deadlines, (deadline, number))
        if len(self._deadlines) > 2 * len(self._waiting) + MAX_STALE:
            self._deadlines = [entry for entry in self._deadlines if entry[1] in self._waiting]
            heapq.heapify(self._deadlines)

    def _waits(self, request: R) -> bool:
        return request.principal in self._flows and request in self._flows[request.principal]

    def _count(self, principal: str, sequences: int, tokens: int) -> None:
        flow = self._flows[principal]
        flow.sequences += sequences
        flow.tokens += tokens
        self.sequences += sequences
        self.tokens += tokens
        if not flow.sequences:
            del self._flows[principal]

    def _longest_wait(self, principal: str) -> float:
        """Seconds of work that a request of this principal may find before its own."""
        waited, _ = self._patience.get(principal, (INFINITY, 0.0))
        return min(waited / 2, self._limits.max_seconds)

    def _until_done(self, flows: Sequence[Flow[R]], principal: str, tokens: int) -> int:
        """Tokens until so many more of a principal are served: until then each other of these is served as many."""
        mine = tokens + (self._flows[principal].tokens if principal in self._flows else 0)
        return sum(min(flow.tokens, mine) for flow in flows) + tokens

    def _slack(self, tokens: int, spare: float, seconds_per_token: float) -> float:
        """Seconds for which each turn of a request lets others go first; `spare` are left to all of its turns.

        In that time more may come than is computed meanwhile: half of what is spare lasts for twice as much.
        """
        turns = ceil(tokens / REQUEST_TURN)
        own = SLACK * min(tokens, REQUEST_TURN) * seconds_per_token
        return max(min(own, MAX_SLACK * self._limits.max_seconds, spare / (2 * turns)), 0.0)

    def _askers(self) -> list[Flow[R]]:
        """What waits of each principal but the reserved one."""
        return [flow for name, flow in self._flows.items() if name != RESERVED]

    def _refuse(
        self,
        flows: Sequence[Flow[R]],
        principal: str,
        sequences: int,
        tokens: int,
        late: bool,
        seconds_per_token: float,
    ) -> None:
        """Raises why so much more of a principal may not wait beside these, or would be answered too late."""
        if principal == RESERVED or not flows:
            return
        own = self._flows.get(principal) or Flow()
        free_sequences = self._limits.max_sequences - sum(flow.sequences for flow in flows)
        free_tokens = self._limits.max_tokens - sum(flow.tokens for flow in flows)
        # Until this principal has been served so many tokens, each other is served as many, or all that waits of it.
        wait = sum(min(flow.tokens, own.tokens) for flow in flows) * seconds_per_token
        fits = own.sequences + sequences <= free_sequences and own.tokens + tokens <= free_tokens
        if fits and wait < self._longest_wait(principal) and not late:
            return
        error: QueueFull | OverShare
        if own.tokens * len(flows) > sum(flow.tokens for flow in flows):
            error = OverShare("more of this caller's work is waiting than of others'; try again soon")
        else:
            error = QueueFull("as much work is waiting as the server holds; try again soon")
        error.retry_after = max(1, ceil(wait))
        raise error
