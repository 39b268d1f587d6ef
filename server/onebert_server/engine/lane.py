"""A lane: one edge's way to the engine and back."""

from collections.abc import Sequence

from onebert_server.engine.block import Block
from onebert_server.engine.requests import Answered, deliver
from onebert_server.engine.scheduler import Scheduler


class Lane:
    """Submits blocks of requests of one edge; any thread may call.

    `answered` gets what has ended: on the engine's thread, together for a batch, or in `submit`.
    """

    def __init__(self, scheduler: Scheduler, answered: Answered) -> None:
        self._scheduler = scheduler
        self._number = scheduler.open_lane(answered)

    def submit(self, block: Block) -> None:
        """Queues each request, or ends it at once: `answered` then gets its error before this returns. Never blocks.

        Errors of requests:
            TooLarge: the request exceeds the whole queue.
            QueueFull, OverShare: the queue is full; `retry_after` is about the time until there is room.
            DeadlineExceeded: the deadline has passed already; or later, before the request's work had begun.
            RowGone: a row has left memory, or its task has changed.
            EngineFailed: the engine does not run; or later, when the forward pass raised for this request alone.
            ShuttingDown: the engine takes nothing new.

        Whoever gets a block from another process calls `block.check` first.
        """
        deliver(self._scheduler.put(self._number, block))

    def withdraw(self, numbers: Sequence[int]) -> None:
        """Withdraws requests that nobody waits for: what waits of them goes at once.

        Nothing is reported of them any more, unless it is on its way.
        """
        self._scheduler.withdraw(self._number, numbers)

    def close(self) -> None:
        """Withdraws everything: the edge is gone."""
        self._scheduler.withdraw(self._number)
