"""Requests to an engine as futures, each on a lane of its own."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import numpy as np

from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.context import Context
from onebert_server.engine.block import REQUEST, SEQUENCE, Block, Ended
from onebert_server.engine.engine import Engine
from onebert_server.engine.host import Host
from onebert_store.errors import OneBertError


@dataclass(frozen=True)
class Item:
    """One sequence and the slot of the row that answers it."""

    tokens: Tokens
    slot: int


class Request(Future[Any]):
    """The logits of each item; cancelling withdraws it."""

    def __init__(self, engine: Engine, host: Host, items: Sequence[Item]) -> None:
        super().__init__()
        self.host, self.items = host, items
        self.began = self.ended = 0.0
        self.lane = engine.lane(self._answered)

    def cancel(self) -> bool:
        self.lane.withdraw([0])
        return super().cancel()

    def _answered(self, ended: Ended) -> None:
        [(_, error, sequences, self.began, self.ended)] = ended.requests.tolist()
        # Who has left may still be answered, if the batch was under way.
        with suppress(InvalidStateError):
            if error >= 0:
                self.set_exception(ended.errors[error])
            else:
                assert sequences == len(ended.outputs) == len(self.items)
                logits = np.split(ended.logits, np.cumsum(ended.outputs)[:-1]) if sequences else []
                self.set_result([*map(self._shaped, self.items, logits)])

    def _shaped(self, item: Item, logits: np.ndarray) -> np.ndarray:
        head = self.host.bank.rows.heads[item.slot]
        return logits.reshape(len(item.tokens), -1) if head and head.pooling == "none" else logits


def submit(engine: Engine, host: Host, items: Sequence[Item], context: Context, **more: Any) -> Request:
    """Submits a request for items of one host; raises the error of one that is refused.

    Tokens that occur several times are one text. `more` are fields of REQUEST.
    """
    request = Request(engine, host, items)
    request.lane.submit(block(engine, host, items, context, **more))
    if request.done() and not request.cancelled() and isinstance(error := request.exception(), OneBertError):
        raise error
    return request


def block(engine: Engine, host: Host, items: Sequence[Item], context: Context, **more: Any) -> Block:
    """A block of this one request, with number 0."""
    inputs = Sequences.of([item.tokens for item in items])
    requests, sequences = np.zeros(1, REQUEST), np.zeros(len(items), SEQUENCE)
    requests["host"], requests["sequences"] = [*engine.hosts.values()].index(host), len(items)
    requests["submitted"], requests["deadline"] = time.monotonic(), context.deadline
    for name, value in more.items():
        requests[name] = value
    sequences["slot"] = [item.slot for item in items]
    sequences["generation"] = host.bank.generation[sequences["slot"]]
    sequences["tokens"], sequences["second"] = inputs.lengths, inputs.second
    sequences["text"] = np.unique(inputs.text, return_inverse=True)[1]
    return Block([context.principal], requests, sequences, inputs.ids)
