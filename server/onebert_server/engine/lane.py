"""A lane: one edge's way to the engine and back."""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np

from onebert_encoder.answering.scores import Logits
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.context import Context
from onebert_server.engine.block import ENDED, SEGMENT_BITS, Block, Ended, check
from onebert_server.engine.host import Host
from onebert_server.engine.passes import Item
from onebert_server.engine.request import Request
from onebert_server.observed import Observed
from onebert_store.errors import OneBertError

Answered = Callable[[Ended], None]
Queue = Callable[[Host, Sequence[Item], Context, bool], Request]
"""Queues items without waking the engine, or raises; with True those of a shadow."""

_NO_OUTPUTS, _NO_LOGITS = np.empty(0, np.int32), np.empty(0, np.float32)


class Lane:
    """Submits blocks of requests of one edge; `answered` gets what has ended, on the engine's thread or in `submit`."""

    def __init__(self, hosts: Sequence[Host], queue: Queue, wake: Callable[[], None], answered: Answered) -> None:
        self._hosts, self._queue, self._wake = hosts, queue, wake
        self._answered = answered
        self._requests: dict[int, Request] = {}
        self._lock = threading.Lock()

    def submit(self, block: Block) -> None:
        """Queues each request, or ends it at once: `answered` then gets its error before this returns.

        Never blocks. Raises ValueError for a damaged block, and takes nothing of it.
        """
        check(block, self._hosts)
        refused, ready = dict[int, OneBertError](), list[tuple[int, Request]]()
        for number, host, items, context, waits in self._requests_of(block):
            try:
                ready.append((number, self._queue(host, items, context, waits)))
            except OneBertError as error:
                refused[number] = error
        with self._lock:
            self._requests |= ready
        for number, request in ready:
            request.add_done_callback(partial(self._done, number))
        self._wake()
        if refused:
            requests = np.zeros(len(refused), ENDED)
            requests["number"], requests["error"] = list(refused), range(len(refused))
            self._answered(Ended(requests, _NO_OUTPUTS, _NO_LOGITS, [*refused.values()]))

    def withdraw(self, numbers: Sequence[int]) -> None:
        """Withdraws requests that nobody waits for; nothing is reported of them any more."""
        with self._lock:
            requests = [self._requests.pop(number, None) for number in numbers]
        for request in requests:
            if request is not None:
                request.cancel()

    def close(self) -> None:
        """Withdraws everything: the edge is gone."""
        self.withdraw(list(self._requests))

    def _requests_of(self, block: Block) -> Iterator[tuple[int, Host, list[Item], Context, bool]]:
        slots, tokens, second, text, _ = (block.sequences[name].tolist() for name in block.sequences.dtype.names or ())
        ids, segments = (block.ids & (1 << SEGMENT_BITS) - 1).tolist(), (block.ids >> SEGMENT_BITS).tolist()
        spans = block.spans or [None] * len(block.requests)
        at = start = 0
        for request, span in zip(block.requests.tolist(), spans, strict=True):
            number, host, principal, count, _, deadline, submitted, waits = request
            texts = dict[int, Tokens]()
            items = []
            for place in range(at, at + count):
                stop = start + tokens[place]
                own = Tokens(ids[start:stop], segments[start:stop], second=second[place])
                items.append(Item(texts.setdefault(text[place], own), slots[place]))
                start = stop
            at += count
            context = Context(block.principals[principal], deadline, submitted, "", observed=Observed(span=span))
            yield number, self._hosts[host], items, context, waits

    def _done(self, number: int, request: Request) -> None:
        with self._lock:
            if self._requests.pop(number, None) is None:
                return
        error, logits = request.exception(), list[Logits]()
        if error is None:
            logits = request.result()
        requests = np.zeros(1, ENDED)
        failed = -1 if error is None else 0
        requests[0] = number, failed, len(logits), request.began, request.ended
        outputs = np.array([each.size for each in logits], np.int32)
        flat = np.concatenate([each.ravel() for each in logits]) if logits else _NO_LOGITS
        errors: Any = [] if error is None else [error]
        batches = {number: request.batches} if request.span is not None else {}
        self._answered(Ended(requests, outputs, flat, errors, batches))
