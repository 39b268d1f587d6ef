"""The engine: one thread owns the device and answers whatever waits, any mix of tasks, in one batch."""

import logging
import threading
import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from math import ceil
from typing import Protocol

import numpy as np
import torch

from onebert_encoder.base import Base
from onebert_encoder.batch import pack
from onebert_encoder.predict import compute_logits
from onebert_encoder.tokens import Tokens
from onebert_server.bank import Bank
from onebert_server.batching import take_batch
from onebert_server.versions import Logits
from onebert_store.errors import EngineFailed, QueueFull, ShuttingDown, TooLarge

logger = logging.getLogger("onebert.engine")

# Share of the newest batch in the running estimate of speed.
_SMOOTHING = 0.2


@dataclass(frozen=True)
class Item:
    """One sequence and the bank's slot that answers it."""

    tokens: Tokens
    slot: int


@dataclass(frozen=True)
class EngineLimits:
    """What may run and wait at once.

    Attributes:
        max_batch_tokens: tokens of one forward pass.
        max_queue_sequences: sequences that may wait.
        max_queue_tokens: tokens that may wait.
    """

    max_batch_tokens: int
    max_queue_sequences: int
    max_queue_tokens: int


class Observer(Protocol):
    """Is told of every forward pass."""

    def observe_batch(self, sequences: int, tokens: int, seconds: float) -> None:
        """Called on the engine's thread after each batch."""


class _Request:
    """Items that are answered together, possibly by several batches; only the engine's thread changes it."""

    def __init__(self, size: int) -> None:
        self.future: Future[list[Logits]] = Future()
        self._answers: dict[int, Logits] = {}
        self._size = size
        self._started: bool | None = None

    def start(self) -> bool:
        """Whether the caller still waits; from the first time on it can no longer cancel.

        What is left of a request that has failed must not run either: its rows may belong to somebody else by then.
        """
        if self._started is None:
            self._started = self.future.set_running_or_notify_cancel()
        return self._started and not self.future.done()

    def settle(self, position: int, logits: Logits) -> None:
        self._answers[position] = logits
        if len(self._answers) == self._size and not self.future.done():
            self.future.set_result([self._answers[i] for i in range(self._size)])

    def fail(self, error: Exception) -> None:
        if not self.future.done():
            self.future.set_exception(error)


@dataclass(frozen=True)
class _Waiting:
    item: Item
    request: _Request
    position: int


class Engine:
    """Owns the device; `submit` from any thread, answers come through futures.

    A forward pass runs on `threads` of PyTorch's; None leaves it to PyTorch. No other thread should compute in parallel
    and stay: each such thread keeps a team, and where all teams together are more threads than the machine has, libgomp
    lets none of them spin at a barrier, and a small batch takes twice as long.
    """

    def __init__(
        self,
        base: Base,
        bank: Bank,
        limits: EngineLimits,
        observer: Observer | None = None,
        threads: int | None = None,
    ) -> None:
        self._base = base
        self._bank = bank
        self._limits = limits
        self._observer = observer
        self._threads = threads
        self._queue: deque[_Waiting] = deque()
        self._queued_tokens = 0
        self._changed = threading.Condition()
        self._seconds_per_token = 0.0
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="onebert-engine", daemon=True)

    def start(self) -> None:
        """Starts the owner thread."""
        self._thread.start()

    def submit(self, items: Sequence[Item]) -> Future[list[Logits]]:
        """Queues items that are answered together; never blocks.

        Returns:
            A future of one float32 array per item, in order: [labels], or [tokens, labels] for a per-token task;
            whether they are finite is the caller's to see.
            It fails with `EngineFailed` when the forward pass raised. Cancelling it takes waiting items back.

        Raises:
            TooLarge: the items could never wait together.
            QueueFull: as much waits as may; `retry_after` is about how long that takes.
            ShuttingDown: the engine takes nothing new.
            EngineFailed: the engine does not run.
        """
        request = _Request(len(items))
        if not items:
            request.future.set_result([])
            return request.future
        tokens = sum(len(item.tokens) for item in items)
        if len(items) > self._limits.max_queue_sequences or tokens > self._limits.max_queue_tokens:
            raise TooLarge("the request holds more than the server's whole queue; send it in parts")
        with self._changed:
            if self._closing:
                raise ShuttingDown("the server is shutting down")
            if not self._thread.is_alive():
                raise EngineFailed("the engine does not run")
            if (
                len(self._queue) + len(items) > self._limits.max_queue_sequences
                or self._queued_tokens + tokens > self._limits.max_queue_tokens
            ):
                raise self._queue_full()
            self._queue.extend(_Waiting(item, request, position) for position, item in enumerate(items))
            self._queued_tokens += tokens
            self._changed.notify()
        return request.future

    def step(self, waiting: Sequence[_Waiting]) -> None:
        """The hot path: pack what waits, run it, hand out the answers."""
        batch = pack(
            self._base,
            [entry.item.tokens for entry in waiting],
            [entry.item.slot for entry in waiting],
            [self._bank.part_at[entry.item.slot] for entry in waiting],
        )
        logits = compute_logits(self._base, self._bank.rows, batch)
        ends = np.cumsum([row.numel() for row in logits])
        answers = np.split(torch.cat([row.flatten() for row in logits]).cpu().numpy(), ends[:-1])
        for entry, row, answer in zip(waiting, logits, answers, strict=True):
            entry.request.settle(entry.position, answer.reshape(row.shape))

    def close(self, timeout: float) -> None:
        """Takes nothing new, answers what waits for at most `timeout` seconds, and stops the thread."""
        with self._changed:
            self._closing = True
            self._changed.notify()
        self._thread.join(timeout)
        with self._changed:
            left = list(self._queue)
            self._queue.clear()
        for entry in left:
            entry.request.start()
            entry.request.fail(ShuttingDown("the server is shutting down"))

    @property
    def alive(self) -> bool:
        """Whether the owner thread runs and takes work."""
        return self._thread.is_alive() and not self._closing

    @property
    def waiting_sequences(self) -> int:
        """Sequences that wait."""
        return len(self._queue)

    @property
    def waiting_tokens(self) -> int:
        """Tokens that wait."""
        return self._queued_tokens

    def _run(self) -> None:
        if self._threads is not None:
            torch.set_num_threads(self._threads)  # counts for this thread
        with torch.inference_mode():
            while waiting := self._take():
                try:
                    started = time.perf_counter()
                    self.step(waiting)
                    self._observe(waiting, time.perf_counter() - started)
                except Exception:
                    # One batch is lost, its callers are told, the engine lives on.
                    logger.exception("a batch of %d sequences failed", len(waiting))
                    for entry in waiting:
                        entry.request.fail(EngineFailed("the forward pass failed"))

    def _observe(self, waiting: Sequence[_Waiting], seconds: float) -> None:
        tokens = sum(len(entry.item.tokens) for entry in waiting)
        self._seconds_per_token += _SMOOTHING * (seconds / tokens - self._seconds_per_token)
        if self._observer is not None:
            self._observer.observe_batch(len(waiting), tokens, seconds)

    def _queue_full(self) -> QueueFull:
        error = QueueFull("as much work is waiting as the server holds; try again soon")
        error.retry_after = max(1, ceil(self._queued_tokens * self._seconds_per_token))
        return error

    def _take(self) -> list[_Waiting]:
        """The next batch, waiting for work; empty when the engine is closed and nothing waits."""
        with self._changed:
            while True:
                lengths = (len(entry.item.tokens) for entry in self._queue)
                count = take_batch(lengths, self._limits.max_batch_tokens)
                taken = [self._queue.popleft() for _ in range(count)]
                self._queued_tokens -= sum(len(entry.item.tokens) for entry in taken)
                # Callers who left are forgotten here, before they cost anything.
                waiting = [entry for entry in taken if entry.request.start()]
                if waiting or (self._closing and not self._queue):
                    return waiting
                if not self._queue:
                    self._changed.wait()
