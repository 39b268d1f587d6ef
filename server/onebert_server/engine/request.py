"""What the engine works on: items that are asked for together, and the batch that the device computes."""

import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from onebert_encoder.answering.scores import Logits
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.context import Context
from onebert_server.engine.host_copy import HostCopy


@dataclass(frozen=True)
class Item:
    """One sequence and the bank's slot that answers it."""

    tokens: Tokens
    slot: int


class Request(Future[list[Logits]]):
    """Items that are answered together, possibly by several batches.

    Args:
        items: at least one.
        costs: tokens that a batch computes for each.
        context: whose they are, and until when.
        withdraw: what to do when the caller has left.

    Attributes:
        left: whether it ends without its answers as soon as no batch reads its rows.
        error: what it then ends with; None where its caller has left.
        span: of the request that these are items of; None where it has none.
        batches: the spans of the batches that something of it was in.
        began, ended: when its first batch began and its last one was done, on the monotonic clock.
    """

    def __init__(
        self, items: Sequence[Item], costs: Sequence[int], context: Context, withdraw: Callable[["Request"], bool]
    ) -> None:
        super().__init__()
        self.items, self.costs = items, costs
        self.principal, self.deadline = context.principal.name, context.deadline
        self.lengths = [len(item.tokens) for item in items]
        self.submitted = self.began = self.ended = time.monotonic()
        self.left = False
        self.error: Exception | None = None
        self.span: Any = context.observed.span
        self.batches: list[Any] = []
        self._withdraw = withdraw
        self._answers: dict[int, Logits] = {}

    @property
    def computed(self) -> int:
        """Items whose answers are kept until the last one is there."""
        return len(self._answers)

    def cancel(self) -> bool:
        """Takes back at once what waits; what runs is let finish first, since the engine reads its rows."""
        return self._withdraw(self)

    def settle(self, position: int, logits: Logits) -> None:
        """Keeps one answer; the future has its result with the last one."""
        self._answers[position] = logits
        if len(self._answers) == len(self.items):
            self.ended = time.monotonic()
            with suppress(InvalidStateError):
                self.set_result([self._answers[i] for i in range(len(self.items))])
            self._answers.clear()

    def fail(self, error: Exception) -> None:
        """Ends the future with an error, unless it has ended."""
        with suppress(InvalidStateError):
            self.set_exception(error)


@dataclass(frozen=True)
class Waiting:
    """One sequence of a request."""

    item: Item
    request: Request
    position: int


@dataclass(frozen=True)
class Launched:
    """A pass that the device computes, or has computed.

    Attributes:
        shapes: of the logits of each item.
        copy: all these logits, flat.
        computed_tokens: what its time is to be compared with, see `Batch.computed_tokens`.
    """

    shapes: Sequence[torch.Size]
    copy: HostCopy
    computed_tokens: float

    def read(self) -> Iterator[Logits]:
        """The logits of every item, in order, once they are there: views of one array."""
        answers, end = self.copy.read(), 0
        for shape in self.shapes:
            start, end = end, end + shape.numel()
            yield answers[start:end].reshape(shape)


@dataclass(frozen=True)
class Flight:
    """A pass with the sequences that wait for it.

    Attributes:
        waiting: its sequences.
        launched: the pass.
        started: when it was launched, on the monotonic clock.
    """

    waiting: Sequence[Waiting]
    launched: Launched
    started: float

    @property
    def requests(self) -> set[Request]:
        """Of which it holds something."""
        return {entry.request for entry in self.waiting}
