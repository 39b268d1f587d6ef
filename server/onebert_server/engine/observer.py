"""The interface through which the engine reports to the server's metrics, and an observer that drops everything."""

from typing import Literal, Protocol

Dropped = Literal["deadline", "left"]
"""Why waiting work was dropped: its deadline passed, or its client left."""


class Observer(Protocol):
    """Receives the engine's events: batches and waits on the engine's thread, the others on any."""

    def observe_batch(self, sequences: int, tokens: int, seconds: float) -> None: ...

    def observe_wait(self, seconds: float) -> None:
        """Called when a request's first sequence is taken, with the seconds that it waited."""

    def count_dropped(self, why: Dropped) -> None:
        """Called for each request with waiting sequences that were dropped."""

    def count_left(self, waiting: int, running: int, computed: int) -> None:
        """Called for each request that nobody waits for any more, with its number of sequences by state."""


class Unobserved:
    """An Observer that counts nothing."""

    def observe_batch(self, sequences: int, tokens: int, seconds: float) -> None: ...

    def observe_wait(self, seconds: float) -> None: ...

    def count_dropped(self, why: Dropped) -> None: ...

    def count_left(self, waiting: int, running: int, computed: int) -> None: ...
