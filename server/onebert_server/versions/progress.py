"""Tracks how far a start is, and lets a signal handler give it up."""

from collections.abc import Callable

from onebert_store.errors import ShuttingDown


class Progress:
    """The progress of a start; the starting thread writes it, others read it. `told` runs after each change."""

    def __init__(self) -> None:
        self.phase, self.done, self.total = "base", 0, 1
        self.told: Callable[[], None] = lambda: None
        # A bool, not an Event: a signal handler may interrupt another one that holds the Event's lock, and would
        # deadlock.
        self._given_up = False

    def begin(self, phase: str, total: int) -> None:
        """Begins the next phase; raises ShuttingDown if the start was given up."""
        self.phase, self.done, self.total = phase, 0, total
        self.advance(0)

    def advance(self, steps: int = 1) -> None:
        """Counts finished steps; raises ShuttingDown if the start was given up."""
        self.done += steps
        self.told()
        if self._given_up:
            raise ShuttingDown("the start was given up")

    def give_up(self) -> None:
        """Ends the start at its next step."""
        self._given_up = True

    def __str__(self) -> str:
        return f"loading {self.phase}: {self.done} of {self.total}"
