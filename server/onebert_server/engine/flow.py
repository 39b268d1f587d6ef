"""The waiting requests of one principal, in the order in which they are due."""

import itertools
from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

# Tokens that a principal is served per turn, about one sentence: even a small batch holds work of a dozen principals,
# and a newcomer is in the next batch.
QUANTUM = 32
# Tokens that a request is served before the rest of it is due anew.
REQUEST_TURN = 2048


class Waiter(Protocol):
    """A request as the queue sees it; compared by identity."""

    @property
    def principal(self) -> str: ...

    @property
    def deadline(self) -> float:
        """On the clock of `now`; the answer is useless afterwards."""

    @property
    def lengths(self) -> Sequence[int]:
        """Tokens of each sequence, at least one."""

    @property
    def costs(self) -> Sequence[int]:
        """Computed tokens of each sequence: fewer than its length if it shares a text with others."""


R = TypeVar("R", bound=Waiter)


@dataclass
class Progress:
    """The progress of a request through the queue.

    Attributes:
        due: when its turn is due, on the clock of `now`.
        slack: seconds between the moment when one of its turns begins to wait and `due`.
        late: its place among the deadlines; None if it has no deadline.
        turn: tokens that are left of its turn.
        place: its order of arrival, which decides between requests that are due at the same time.
    """

    due: float
    slack: float
    late: int | None = None
    next: int = 0
    turn: int = REQUEST_TURN
    place: int = 0


class Flow(Generic[R]):
    """The waiting requests of one principal, which is served next in round `turn`, with `credit` tokens."""

    def __init__(self, principal: str, turn: int) -> None:
        self.principal, self.turn = principal, turn
        self.sequences = self.tokens = 0
        self.credit = QUANTUM
        self.place: int | None = None
        self._requests: dict[R, Progress] = {}
        # (due, place, request), sorted. No two places are equal, so requests are never compared.
        self._order: list[tuple[float, int, R]] = []
        self._places = itertools.count()

    def __contains__(self, request: R) -> bool:
        return request in self._requests

    def __iter__(self) -> Iterator[R]:
        return iter(self._requests)

    def add(self, request: R, progress: Progress) -> None:
        progress.place = next(self._places)
        self._requests[request] = progress
        insort(self._order, (progress.due, progress.place, request))

    def first(self) -> tuple[R, Progress]:
        request = self._order[0][2]
        return request, self._requests[request]

    def settle(self, now: int) -> bool:
        """Moves its turn to the first round after `now` with credit for its first sequence; returns whether it moved.

        It never moves back to a round that is over, nor out of a turn that it still has credit for.
        """
        request, progress = self.first()
        rounds = min(max(self.turn - now - 1, 0), (self.credit - request.lengths[progress.next]) // QUANTUM)
        self.turn -= rounds
        self.credit -= rounds * QUANTUM
        return rounds != 0

    def remove(self, request: R) -> Progress:
        progress = self._requests.pop(request)
        del self._order[bisect_left(self._order, (progress.due, progress.place))]
        return progress

    def advance(self, length: int, now: float) -> bool:
        """Records that the next sequence, of `length` tokens, was taken; returns whether its request is complete."""
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
