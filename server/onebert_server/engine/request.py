"""The engine's units of work: requests, and the batches that the device computes."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from onebert_encoder.answering.scores import Logits
from onebert_server.access.context import Context
from onebert_server.engine.host import Host
from onebert_server.engine.passes import Item, Launched


class Request(Future[list[Logits]]):
    """Items of one base that are answered together, possibly by several batches.

    Attributes:
        lengths: tokens of each item, at least one.
        costs: computed tokens of each item: fewer than its length if it shares a text with others.
        work: tokens of each item as the queue counts them; see FairQueue.
        waits: whether it is taken only while no other request waits, and outside of the queue: a shadow's.
        left: whether it ends without answers as soon as no batch reads its rows.
        error: its error in that case; None if its caller has left.
        began, ended: start of its first batch and end of its last one, on the monotonic clock.
    """

    def __init__(
        self,
        host: Host,
        items: Sequence[Item],
        context: Context,
        withdraw: Callable[["Request"], bool],
        waits: bool = False,
    ) -> None:
        super().__init__()
        self.host, self.items, self.costs = host, items, host.passes.costs(items)
        self.principal, self.deadline = context.principal.name, context.deadline
        self.lengths = [len(item.tokens) for item in items]
        self.work = host.work(self.lengths)
        self.submitted = self.began = self.ended = time.monotonic()
        self.waits = waits
        self.left = False
        self.error: Exception | None = None
        self.span: Any = context.observed.span
        self.batches: list[Any] = []
        self._withdraw = withdraw
        self._answers: dict[int, Logits] = {}

    @property
    def computed(self) -> int:
        """Answered items of an unfinished request."""
        return len(self._answers)

    def cancel(self) -> bool:
        """Withdraws waiting items at once; running ones finish first, because the engine reads their rows."""
        return self._withdraw(self)

    def settle(self, position: int, logits: Logits) -> None:
        """Keeps one answer; the last answer completes the future."""
        self._answers[position] = logits
        if len(self._answers) == len(self.items):
            self.ended = time.monotonic()
            with suppress(InvalidStateError):
                self.set_result([self._answers[i] for i in range(len(self.items))])
            self._answers.clear()

    def fail(self, error: Exception) -> None:
        with suppress(InvalidStateError):
            self.set_exception(error)


@dataclass(frozen=True)
class Waiting:
    """One sequence of a request."""

    item: Item
    request: Request
    position: int


def tokens_of(waiting: Sequence[Waiting]) -> int:
    """Returns the tokens of some sequences together."""
    return sum(len(entry.item.tokens) for entry in waiting)


@dataclass(frozen=True)
class Flight:
    """A pass with its sequences; `started` is its launch on the monotonic clock."""

    waiting: Sequence[Waiting]
    launched: Launched
    started: float

    @property
    def requests(self) -> set[Request]:
        return {entry.request for entry in self.waiting}

    @property
    def host(self) -> Host:
        return self.waiting[0].request.host
