"""Who is told what the engine does: the server's metrics, in production."""

from typing import Literal, Protocol

Dropped = Literal["deadline", "left"]
"""Why work was dropped before it was done: it would have come too late, or whoever asked has left."""


class Observer(Protocol):
    """Is told what the engine does, on any thread."""

    def observe_batch(self, sequences: int, tokens: int, seconds: float) -> None:
        """After each forward pass."""

    def observe_wait(self, seconds: float) -> None:
        """For each request that waited so long until its first sequence was taken."""

    def count_dropped(self, why: Dropped) -> None:
        """For each request of which something was dropped."""

    def count_left(self, waiting: int, running: int, computed: int) -> None:
        """For each request that nobody waits for any more: its sequences, by what had become of them until then."""
