"""Tracks how far a start is, and lets a signal handler give it up."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onebert_store.command import console
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


@contextmanager
def shown(progress: Progress) -> Iterator[None]:
    """Shows a start while it goes on: a bar on a terminal, elsewhere a line each half minute."""
    with console.progress(describe=lambda: str(progress)) as bar:
        task = bar.add_task(f"loading {progress.phase}", total=progress.total)

        def tell() -> None:
            bar.update(task, description=f"loading {progress.phase}", completed=progress.done, total=progress.total)

        progress.told = tell
        try:
            yield
        finally:
            progress.told = lambda: None
