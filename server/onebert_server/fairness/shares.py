"""Amounts that principals hold of one bounded thing, in running sums: no question walks the principals."""

from collections.abc import Iterator
from contextlib import contextmanager

from onebert_store.errors import OverShare, QueueFull


class Shares:
    """The amounts that principals hold, `most` for all together.

    A principal may hold no more than it leaves free (the dynamic threshold of Choudhury and Hahne): one that floods
    gets half, two get a third each, and a newcomer finds as much free.
    """

    def __init__(self, most: int) -> None:
        self.total = 0
        self._most = most
        self._held: dict[str, int] = {}

    @property
    def principals(self) -> int:
        """Principals that hold something."""
        return len(self._held)

    def of(self, principal: str) -> int:
        return self._held.get(principal, 0)

    def fits(self, principal: str, amount: int) -> bool:
        return self.of(principal) + amount <= self._most - self.total

    def is_over(self, principal: str) -> bool:
        """Whether a principal holds more than the mean of all that hold something."""
        return self.of(principal) * self.principals > self.total

    def add(self, principal: str, amount: int) -> int:
        """Counts an amount, also one that does not fit, or gives back a negative one; returns what is held now."""
        held = self._held.get(principal, 0) + amount
        if held:
            self._held[principal] = held
        else:
            self._held.pop(principal, None)
        self.total += amount
        return held


class Permits(Shares):
    """Shares that refuse; use them from one event loop.

    Args:
        full: the message of QueueFull.
        over: the message of OverShare, for a principal that holds more than the mean; without it, QueueFull is raised.
    """

    def __init__(self, most: int, full: str, over: str | None = None) -> None:
        super().__init__(most)
        self._full = full
        self._over = over

    @contextmanager
    def held(self, principal: str, amount: int = 1) -> Iterator[None]:
        """Takes an amount while the block runs."""
        self.take(principal, amount)
        try:
            yield
        finally:
            self.give_back(principal, amount)

    def take(self, principal: str, amount: int) -> None:
        """Counts an amount until `give_back`; raises QueueFull or OverShare, and counts nothing, if it is too much."""
        if not self.fits(principal, amount):
            if self._over is not None and self.is_over(principal):
                raise OverShare(self._over)
            raise QueueFull(self._full)
        self.add(principal, amount)

    def give_back(self, principal: str, amount: int) -> None:
        self.add(principal, -amount)
