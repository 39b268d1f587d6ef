"""How far a start is, for whoever asks while it goes on, and whether anybody still wants it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from onebert_store.command import console
from onebert_store.errors import ShuttingDown


class Progress:
    """Written by the thread that starts the server, read by others.

    Attributes:
        phase: what is being loaded: `base`, `store`, `versions`, `manifests`.
        done, total: how many of them are.
        told: called when any of these has changed.
    """

    def __init__(self) -> None:
        self.phase, self.done, self.total = "base", 0, 1
        self.told: Callable[[], None] = lambda: None
        # A flag and no Event, whose lock a signal's handler might find held by the handler that it interrupts.
        self._given_up = False

    def begin(self, phase: str, total: int) -> None:
        """The next phase, of so many steps.

        Raises:
            ShuttingDown: the start was given up.
        """
        self.phase, self.done, self.total = phase, 0, total
        self.advance(0)

    def advance(self, steps: int = 1) -> None:
        """So many more are done.

        Raises:
            ShuttingDown: the start was given up.
        """
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
