"""What waits of one principal, in the order in which it is due."""

import itertools
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

# Tokens that a principal is served in its turn: about one sentence. So every batch, however small, holds something of
# each of a dozen principals, and whoever has just come is in the next one.
QUANTUM = 32
# Tokens that a request is served before the rest of it is due anew.
REQUEST_TURN = 2048


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

    @property
    def costs(self) -> Sequence[int]:
        """Tokens that a batch computes for each sequence: fewer than its length where it shares a text with others."""


R = TypeVar("R", bound=Waiter)


@dataclass
class Progress:
    """How far a request is.

    Attributes:
        due: when its turn is due, on the clock of `now`.
        slack: seconds from when a turn of it begins to wait until that turn is due.
        late: its place among the deadlines; None where it has no deadline.
        next: its next sequence.
        turn: tokens that are left of its turn.
        place: among requests of its principal that are due at the same time: in the order in which they came to wait.
    """

    due: float
    slack: float
    late: int | None = None
    next: int = 0
    turn: int = REQUEST_TURN
    place: int = 0


class Flow(Generic[R]):
    """What waits of one principal.

    Args:
        principal: whose it is.
        turn: the round in which its first turn comes.

    Attributes:
        sequences, tokens: that wait.
        turn: the round in which the principal is served next.
        credit: tokens that it may be served in that round.
        place: among the turns of all principals; None before it has one.
    """

    def __init__(self, principal: str, turn: int) -> None:
        self.principal, self.turn = principal, turn
        self.sequences = self.tokens = 0
        self.credit = QUANTUM
        self.place: int | None = None
        self._requests: dict[R, Progress] = {}
        # When each is due, and its place, sorted. No two places are equal, so that requests are never compared.
        self._order: list[tuple[float, int, R]] = []
        self._places = itertools.count()

    def __contains__(self, request: R) -> bool:
        return request in self._requests

    def __iter__(self) -> Iterator[R]:
        return iter(self._requests)

    def add(self, request: R, progress: Progress) -> None:
        """Lets a request wait."""
        progress.place = next(self._places)
        self._requests[request] = progress
        insort(self._order, (progress.due, progress.place, request))

    def first(self) -> tuple[R, Progress]:
        """The request that is due first."""
        request = self._order[0][2]
        return request, self._requests[request]

    def settle(self, now: int) -> bool:
        """Moves its turn to the first round after `now` in which it has the credit for what is first; whether it moved.

        It never moves back to a round that is over, nor out of a turn that it still has credit for.
        """
        request, progress = self.first()
        rounds = min(max(self.turn - now - 1, 0), (self.credit - request.lengths[progress.next]) // QUANTUM)
        self.turn -= rounds
        self.credit -= rounds * QUANTUM
        return rounds != 0

    def remove(self, request: R) -> Progress:
        """Forgets a request; returns how far it was."""
        progress = self._requests.pop(request)
        del self._order[bisect_left(self._order, (progress.due, progress.place))]
        return progress

    def advance(self, length: int, now: float) -> bool:
        """After the next sequence, of so many tokens, was taken; whether it was the last one of its request."""
        request, progress = self.first()
        self.credit -= length
        progress.next += 1
        progress.turn -= length
        if progress.next == len(request.lengths):
            self.remove(request)
            return True
        if progress.turn <= 0:
            self.remove(request)
            progress.turn += REQUEST_TURN
            progress.due = now + progress.slack
            self.add(request, progress)
        return False
