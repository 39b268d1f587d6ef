"""A lane: the requests of one edge that are under way, and how they come back to it."""

import logging
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.layout.upload import Array
from onebert_server.engine.block import ENDED, Block, Ended
from onebert_server.engine.request import Request
from onebert_store.errors import OneBertError

logger = logging.getLogger("onebert.engine")

Answered = Callable[[Ended], None]
Endings = list[tuple[Answered, Ended]]
"""The requests that have ended, by the edge that gets them."""


class _Scheduler(Protocol):
    def put(self, lane: "Lane", block: Block) -> Endings: ...

    def withdraw(self, lane: "Lane", numbers: Sequence[int] | None) -> None: ...


class Lane:
    """One edge's way to the engine and back: it submits blocks of requests; any thread may call.

    `answered` gets what has ended: on the engine's thread, together for a batch, or in `submit`.

    Attributes:
        under_way: its requests by number.
    """

    def __init__(self, scheduler: _Scheduler, answered: Answered) -> None:
        self._scheduler, self.answered = scheduler, answered
        self.under_way: dict[int, Request] = {}

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
        deliver(self._scheduler.put(self, block))

    def withdraw(self, numbers: Sequence[int]) -> None:
        """Withdraws requests that nobody waits for: what waits of them goes at once.

        Nothing is reported of them any more, unless it is on its way.
        """
        self._scheduler.withdraw(self, numbers)

    def close(self) -> None:
        """Withdraws everything: the edge is gone."""
        self._scheduler.withdraw(self, None)


def ended(requests: Iterable[Request], now: float) -> Endings:
    """Takes requests off their lanes; returns the ones that somebody waits for."""
    by_lane = dict[Lane, list[Request]]()
    for request in requests:
        # A withdrawn one is off its lane.
        if request.lane.under_way.pop(request.number, None) is not None:
            by_lane.setdefault(request.lane, []).append(request)
    return [(lane.answered, _ended_of(of_lane, now)) for lane, of_lane in by_lane.items()]


def _ended_of(requests: Sequence[Request], now: float) -> Ended:
    rows, errors = list[tuple[int, int, int, float, float]](), list[OneBertError]()
    parts = list[tuple[int, Array, NDArray[np.float32]]]()
    for request in requests:
        error, count = -1, len(request.sequences)
        if request.error is not None:
            error, count = len(errors), 0
            errors.append(request.error)
        else:
            parts += request.logits()
        rows.append((request.number, error, count, request.began, now))
    sizes, values = np.empty(0, np.int32), np.empty(0, np.float32)
    if parts:
        sizes = np.concatenate([part[1] for part in parts]).astype(np.int32)
        values = np.concatenate([part[2] for part in parts])
    batches = {request.number: request.batches for request in requests if request.span is not None}
    return Ended(np.array(rows, ENDED), sizes, values, errors, batches)


def deliver(endings: Endings) -> None:
    """Calls edges; one that fails touches nobody else."""
    for answered, ended in endings:
        try:
            answered(ended)
        except Exception:
            logger.exception("an edge failed to take its answers")
