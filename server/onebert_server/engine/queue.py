"""Who is next: waiting sequences are taken in fair turns between principals; pure logic, told the time by its callers.

Two levels take turns. Principals by deficit round robin on tokens: each gets `QUANTUM` tokens a turn, so that everybody
who waits gets an equal part of the device. Within a principal, requests are served in the order in which they came, but
one that has had `REQUEST_TURN` tokens goes behind the others: a short text never waits for a whole fan-out.

What may wait is bounded by the wait that a request would find, in seconds: what must be served before its own work
begins, if all principals are served equally. One principal alone can fill the queue; a newcomer finds no wait at all.
"""

import heapq
import itertools
from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Generic, Protocol, TypeVar

from onebert_server.context import RESERVED
from onebert_store.errors import DeadlineExceeded, OverShare, QueueFull, TooLarge

# Tokens that a principal is served in its turn, and that a request is served before others of its principal go first.
QUANTUM = 512
REQUEST_TURN = 2048

# Deadlines of requests that no longer wait are dropped when there are so many of them more than requests that wait.
MAX_STALE = 1024

# How long it is remembered, in seconds, that a principal's clients leave, and of how many principals.
REMEMBERED = 10.0
MAX_REMEMBERED = 1024
# A client who leaves sooner than after this share of the longest wait had reasons of its own, such as the end of its
# program; a shorter wait would not have kept it.
LEFT_FOR_WAITING = 0.5

INFINITY = float("inf")


class Waiter(Protocol):
    """A request as the queue sees it; compared by identity."""

    @property
    def principal(self) -> str:
        """Who asks."""

    @property
    def deadline(self) -> float:
        """When its answer is of no use any more, on the clock of `now`."""

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each of its sequences, at least one."""


R = TypeVar("R", bound=Waiter)


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


@dataclass
class _Progress:
    """How far a request is: its number, its next sequence, and the tokens it may be served before others go first."""

    number: int
    next: int = 0
    turn: int = REQUEST_TURN


class _Flow(Generic[R]):
    """What waits of one principal.

    Attributes:
        requests: in the order of their turns.
        credit: tokens that the principal may still be served in its turn.
    """

    def __init__(self) -> None:
        self.requests: OrderedDict[R, _Progress] = OrderedDict()
        self.sequences = self.tokens = 0
        self.credit = QUANTUM

    def advance(self, length: int) -> bool:
        """After the next sequence, of so many tokens, was taken; whether it was the last one of its request."""
        request, progress = next(iter(self.requests.items()))
        self.credit -= length
        progress.next += 1
        progress.turn -= length
        if progress.next == len(request.lengths):
            del self.requests[request]
            return True
        if progress.turn <= 0:
            progress.turn += REQUEST_TURN
            self.requests.move_to_end(request)
        return False


class FairQueue(Generic[R]):
    """Requests whose sequences wait; not thread-safe.

    Attributes:
        sequences, tokens: that wait, of all principals.
    """

    def __init__(self, limits: QueueLimits) -> None:
        self.sequences = self.tokens = 0
        self._limits = limits
        # In the order of their turns; only those of whom something waits.
        self._flows: OrderedDict[str, _Flow[R]] = OrderedDict()
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
        self._refuse(principal, 1, 1, INFINITY, seconds_per_token)

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
        self._refuse(request.principal, sequences, tokens, request.deadline - now, seconds_per_token)
        flow = self._flows.setdefault(request.principal, _Flow())
        number = next(self._numbers)
        flow.requests[request] = _Progress(number)
        self._waiting[number] = request
        self._count(request.principal, sequences, tokens)
        if request.deadline < INFINITY:
            self._note_deadline(request.deadline, number)

    def take(self, max_tokens: int) -> list[tuple[R, int]]:
        """Takes the next batch.

        Args:
            max_tokens: in all. Tokens are packed without padding, so a batch costs the sum of its lengths. A sequence
                that is longer still goes, alone.

        Returns:
            Requests with the index of the sequence that was taken; empty only when nothing waits.
        """
        taken: list[tuple[R, int]] = []
        while self._flows:
            principal, flow = next(iter(self._flows.items()))
            request, progress = next(iter(flow.requests.items()))
            length = request.lengths[progress.next]
            if length > max_tokens and taken:
                break
            if length > flow.credit:
                flow.credit += QUANTUM
                self._flows.move_to_end(principal)
                continue
            taken.append((request, progress.next))
            max_tokens -= length
            if flow.advance(length):
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
        progress = self._flows[request.principal].requests.pop(request)
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
        return request.principal in self._flows and request in self._flows[request.principal].requests

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

    def _refuse(self, principal: str, sequences: int, tokens: int, patience: float, seconds_per_token: float) -> None:
        """Raises why so much more of a principal may not wait, or would not be answered within `patience` seconds."""
        flows = [flow for name, flow in self._flows.items() if name != RESERVED]
        if principal == RESERVED or not flows:
            return
        own = self._flows.get(principal) or _Flow()
        free_sequences = self._limits.max_sequences - sum(flow.sequences for flow in flows)
        free_tokens = self._limits.max_tokens - sum(flow.tokens for flow in flows)
        # Until this principal has been served so many tokens, each other is served as many, or all that waits of it.
        wait = sum(min(flow.tokens, own.tokens) for flow in flows) * seconds_per_token
        done = (sum(min(flow.tokens, own.tokens + tokens) for flow in flows) + tokens) * seconds_per_token
        fits = own.sequences + sequences <= free_sequences and own.tokens + tokens <= free_tokens
        if fits and wait < self._longest_wait(principal) and done <= patience:
            return
        error: QueueFull | OverShare
        if own.tokens * len(flows) > sum(flow.tokens for flow in flows):
            error = OverShare("more of this caller's work is waiting than of others'; try again soon")
        else:
            error = QueueFull("as much work is waiting as the server holds; try again soon")
        error.retry_after = max(1, ceil(wait))
        raise error
