"""Requests as futures, over a lane: what has not come to arrays yet uses them."""

import time
from collections.abc import Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from typing import Any

import numpy as np

from onebert_encoder.answering.scores import Logits
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.context import Context
from onebert_server.engine.block import REQUEST, SEQUENCE, Block, Ended
from onebert_server.engine.host import Host
from onebert_server.engine.lane import Lane
from onebert_server.engine.scheduler import Scheduler
from onebert_store.errors import OneBertError


@dataclass(frozen=True)
class Item:
    """One sequence and the bank's slot of the row that answers it."""

    tokens: Tokens
    slot: int


class Request(Future[list[Logits]]):
    """Items of one base that are answered together."""

    def __init__(self, host: Host, items: Sequence[Item], span: Any, lane: Lane, number: int) -> None:
        super().__init__()
        self.host, self.items, self.span = host, items, span
        self.lengths = [len(item.tokens) for item in items]
        self.began = self.ended = 0.0
        self.batches: Sequence[Any] = []
        self._lane, self.number = lane, number

    def cancel(self) -> bool:
        self._lane.withdraw([self.number])
        return super().cancel()


class Futures:
    """A lane whose requests are futures."""

    def __init__(self, hosts: Sequence[Host], scheduler: Scheduler) -> None:
        self._hosts = hosts
        self._lane = Lane(hosts, scheduler, self._answered)
        self._numbers = count()
        self._requests: dict[int, Request] = {}

    def submit(
        self, parts: Sequence[tuple[Host, Sequence[Item]]], context: Context, wake: bool, waits: bool = False
    ) -> list[Request]:
        span = context.observed.span
        asked = [Request(host, items, span, self._lane, next(self._numbers)) for host, items in parts]
        self._requests |= {request.number: request for request in asked}
        self._lane.submit(self._block(asked, context, waits), wake)
        for request in asked:
            if request.done() and (error := request.exception()) is not None:
                for other in asked:
                    other.cancel()
                raise error
        return asked

    def _block(self, asked: Sequence[Request], context: Context, waits: bool) -> Block:
        items = [(request, item) for request in asked for item in request.items]
        inputs = Sequences.of([item.tokens for _, item in items])
        requests, sequences = np.zeros(len(asked), REQUEST), np.zeros(len(items), SEQUENCE)
        requests["number"] = [request.number for request in asked]
        requests["host"] = [self._hosts.index(request.host) for request in asked]
        requests["sequences"] = [len(request.items) for request in asked]
        requests["deadline"], requests["waits"] = context.deadline, waits
        requests["submitted"] = time.monotonic()
        sequences["slot"] = [item.slot for _, item in items]
        sequences["generation"] = [request.host.bank.generation[item.slot] for request, item in items]
        sequences["tokens"], sequences["second"] = inputs.lengths, inputs.second
        texts: list[int] = []
        for request in asked:
            known = dict[int, int]()
            texts += [known.setdefault(id(item.tokens), len(known)) for item in request.items]
        sequences["text"] = texts
        spans = [request.span for request in asked] if context.observed.span is not None else ()
        return Block([context.principal], requests, sequences, inputs.ids, spans)

    def _answered(self, ended: Ended) -> None:
        logits = iter(np.split(ended.logits, np.cumsum(ended.outputs[:-1])))
        for number, error, sequences, began, end in ended.requests.tolist():
            request = self._requests.pop(number)
            request.began, request.ended, request.batches = began, end, ended.batches.get(number, [])
            found: OneBertError | list[Logits]
            if error >= 0:
                found = ended.errors[error]
            else:
                found = [_shaped(item, request.host, next(logits)) for item in request.items[:sequences]]
            with suppress(InvalidStateError):
                request.set_exception(found) if isinstance(found, OneBertError) else request.set_result(found)


def _shaped(item: Item, host: Host, logits: Logits) -> Logits:
    head = host.bank.rows.heads[item.slot]
    return logits.reshape(len(item.tokens), -1) if head is not None and head.pooling == "none" else logits
