"""The engine: one thread owns the device and answers whatever waits, any mix of tasks, in one batch."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch

from onebert_encoder.base.base import Base
from onebert_encoder.compute.threads import compute_with
from onebert_server.access.context import Context
from onebert_server.engine.bank import Bank
from onebert_server.engine.observer import Observer
from onebert_server.engine.passes import Passes
from onebert_server.engine.queue import INFINITY, QueueLimits
from onebert_server.engine.request import Flight, Item, Request, Waiting
from onebert_server.engine.scheduler import Scheduler
from onebert_server.engine.speed import Speed, measure_speed
from onebert_store.errors import EngineFailed, ShuttingDown

if TYPE_CHECKING:
    from onebert_server.telemetry.tracing import Tracing

logger = logging.getLogger("onebert.engine")

# Seconds of a batch that makes way for short texts of others between its layers, for so large a part of its tokens each
# time: one text of 512 tokens may be over a quarter of a second on a slow processor.
_LONG_BATCH, _PART_BESIDE = 0.02, 2


@dataclass(frozen=True)
class EngineLimits:
    """What may run and wait at once.

    Attributes:
        max_batch_tokens: tokens of one forward pass.
        queue: what may wait.
        max_batch_seconds: how long one forward pass should take at most; it then holds fewer tokens, but never so few
            that it would waste the device.
    """

    max_batch_tokens: int
    queue: QueueLimits
    max_batch_seconds: float = INFINITY


class Engine:
    """Owns the device; `submit` from any thread, answers come through futures.

    A forward pass runs on `threads` of PyTorch's; None leaves it to PyTorch. No other thread should compute in parallel
    and stay: each such thread keeps a team, and where all teams together are more threads than the machine has, libgomp
    lets none of them spin at a barrier, and a small batch takes twice as long.

    An engine that `overlaps` packs and launches the next batch while the device computes one, if what waits fills it;
    None is whether the device is another than the CPU. A smaller one waits, and grows, until the device is free.
    """

    def __init__(
        self,
        base: Base,
        bank: Bank,
        limits: EngineLimits,
        observer: Observer | None = None,
        threads: int | None = None,
        overlaps: bool | None = None,
        tracing: "Tracing | None" = None,
    ) -> None:
        self._base = base
        self._bank = bank
        self._limits = limits
        self._observer = observer
        self._tracing = tracing
        self._threads = threads
        self._overlaps = base.device.type != "cpu" if overlaps is None else overlaps
        self._passes = Passes(base, bank)
        self._scheduler = Scheduler(limits.queue, observer)
        self._speed = Speed()
        # Of a token that waits, in batches as large as they get. Kept, since each request is checked by this number
        # three times before it waits; only a batch changes the number.
        self._seconds_per_token = 0.0
        self._landed = 0.0
        self._failed = 0
        self._pass_started: float | None = None
        self._measured = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onebert-engine", daemon=True)

    def start(self) -> None:
        """Starts the owner thread, and returns when the speed of this machine is measured.

        Until then nothing else should compute: measured beside other work, small batches would seem too costly.
        """
        self._scheduler.open()
        self._thread.start()
        self._measured.wait()

    def check(self, context: Context) -> None:
        """Refuses what `submit` would refuse however small it were: quick, to be asked before any other work.

        Raises:
            QueueFull, OverShare, ShuttingDown, EngineFailed: see `submit`.
        """
        self._scheduler.check(context.principal.name, self._seconds_per_token)

    def wake(self) -> None:
        """Begins with what was submitted without waking the engine; what is under way goes on."""
        self._scheduler.wake()

    def submit(self, items: Sequence[Item], context: Context, wake: bool = True) -> Request:
        """Queues items that are answered together; never blocks.

        Args:
            items: any number.
            context: whose they are, and until when they are of use.
            wake: whether to begin at once, where nothing is under way; else the caller calls `wake` soon.

        Returns:
            A future of one float32 array per item, in order: [labels], or [tokens, labels] for a per-token task;
            whether they are finite is the caller's to see.
            It fails with `EngineFailed` when the forward pass raised, and with `DeadlineExceeded` when its work had
            not begun, or not ended, in time. Cancelling it takes waiting items back, at once; it counts as cancelled
            when nothing of it runs any more.

        Raises:
            TooLarge: the items could never wait together.
            QueueFull, OverShare: as much waits as may; `retry_after` is about how long that takes.
            DeadlineExceeded: it is too late already.
            ShuttingDown: the engine takes nothing new.
            EngineFailed: the engine does not run.
        """
        request = Request(items, self._passes.costs(items), context, self._scheduler.withdraw)
        if items:
            self._scheduler.put(request, self._seconds_per_token, wake)
        else:
            request.set_result([])
        return request

    def launch(self, waiting: Sequence[Waiting], whole: bool = False) -> Flight:
        """The hot path: packs what waits and sets the device to it; nothing here waits for a GPU.

        A long batch that is not to be computed as a `whole` makes way for short texts of others, where the device is
        the CPU; the time that this takes is not the batch's.
        """
        started, spent = time.monotonic(), [0.0]
        tokens = sum(len(entry.item.tokens) for entry in waiting)
        between: Callable[[], None] | None = None
        if not (whole or self._overlaps) and self._speed.seconds(tokens) >= _LONG_BATCH:
            between = partial(self._make_way, waiting, tokens // _PART_BESIDE, spent)
        launched = self._passes.launch([entry.item for entry in waiting], between)
        return Flight(waiting, launched, started + sum(spent))

    def land(self, flight: Flight) -> None:
        """Hands out the answers, once they are there."""
        answers = flight.launched.read()
        # Before any request ends, since it says then which batches it was in.
        span = None if self._tracing is None else self._tracing.batch(flight.requests, flight.started)
        for entry, logits in zip(flight.waiting, answers, strict=True):
            entry.request.settle(entry.position, logits)
        tokens = self._observe(flight)
        if span is not None:
            span.set_attributes({"onebert.sequences": len(flight.waiting), "onebert.tokens": tokens})
            span.end()

    def close(self, timeout: float) -> None:
        """Takes nothing new, answers what waits for at most `timeout` seconds, and stops the thread.

        Every future has ended then, even of a forward pass that hangs: it may still read its rows, but no row is given
        to another version any more.
        """
        self._scheduler.close()
        self._thread.join(timeout)
        self._scheduler.end(ShuttingDown("the server is shutting down"))

    @property
    def alive(self) -> bool:
        """Whether the owner thread runs and takes work."""
        return self._thread.is_alive() and not self._scheduler.closing

    @property
    def dead(self) -> bool:
        """Whether the owner thread has ended without being told to; never before it was started."""
        return self._thread.ident is not None and not self._thread.is_alive() and not self._scheduler.closing

    @property
    def pass_seconds(self) -> float:
        """For how long the forward pass under way has been running; 0 where none is."""
        started = self._pass_started
        return 0.0 if started is None else time.monotonic() - started

    @property
    def failed_in_a_row(self) -> int:
        """Batches that have failed since the last one that was answered."""
        return self._failed

    @property
    def waiting_sequences(self) -> int:
        """Sequences that wait."""
        return self._scheduler.sequences

    @property
    def waiting_tokens(self) -> int:
        """Tokens that wait."""
        return self._scheduler.tokens

    @property
    def waiting_seconds(self) -> float:
        """Estimated seconds of work that waits."""
        return self._scheduler.tokens * self._seconds_per_token

    @property
    def batch_tokens(self) -> int:
        """Tokens that a batch computes where more wait: as few as the device does without losing capacity."""
        return self._speed.worthwhile(self._max_tokens)

    @property
    def _max_tokens(self) -> int:
        """Tokens that a batch holds at most, those that several of its sequences share counted for each."""
        most = self._limits.max_batch_tokens
        return self._speed.tokens_within(self._limits.max_batch_seconds, most)

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                self._measure()
                self._fly()
        except BaseException:
            logger.critical("the engine's thread dies", exc_info=True)
            self._scheduler.end(EngineFailed("the engine does not run"))

    def _fly(self) -> None:
        """Batch after batch, until the engine is closed and nothing waits."""
        flight: Flight | None = None
        while (waiting := self._take(only_full=flight is not None)) or flight:
            following = self._launched(waiting, flight) if waiting else None
            if flight:
                self._land(flight, following)
            if following and not self._overlaps:
                self._land(following, None)
                following = None
            flight = following

    def _take(self, only_full: bool) -> list[Waiting]:
        return self._scheduler.take(self.batch_tokens, self._max_tokens, only_full)

    def _launched(self, waiting: Sequence[Waiting], before: Flight | None) -> Flight | None:
        try:
            self._pass_started = self._pass_started or time.monotonic()
            return self.launch(waiting)
        except BaseException as error:
            self._lose({entry.request for entry in waiting}, error)
            self._let_go(before)
            return None

    def _make_way(self, running: Sequence[Waiting], max_tokens: int, spent: list[float]) -> None:
        """Between two layers of a long batch: answers what is short and others', and notes how long that took."""
        if waiting := self._scheduler.take_beside((entry.request for entry in running), max_tokens):
            began, landed = time.monotonic(), self._landed
            try:
                self.land(self.launch(waiting, whole=True))
            except BaseException as error:
                self._lose({entry.request for entry in waiting}, error)
            self._landed = landed
            spent.append(time.monotonic() - began)

    def _land(self, flight: Flight, following: Flight | None) -> None:
        try:
            self.land(flight)
            self._failed = 0
        except BaseException as error:
            self._lose(flight.requests, error)
        self._let_go(following)

    def _lose(self, requests: set[Request], error: BaseException) -> None:
        """One batch is lost, its callers are told, the engine lives on, unless it is to end."""
        logger.exception("a batch of %d requests failed", len(requests))
        self._failed += 1
        self._scheduler.lose(requests)
        if not isinstance(error, Exception):
            raise error

    def _let_go(self, running: Flight | None) -> None:
        """Releases the requests of a batch that ended; `running` is the batch behind it, if there is one."""
        self._pass_started = running.started if running else None
        self._scheduler.release(running.requests if running else set())

    def _measure(self) -> None:
        try:
            if self._threads is not None:
                compute_with(self._threads)
            self._pass_started = time.monotonic()
            self._speed = measure_speed(self._base, self._bank.rows)
            self._note_speed()
        except Exception:
            # Of any kind: a device that fails these batches may answer the next ones, and where it does not, the caller
            # of each is told. Without a measured speed only sequences and tokens bound what waits.
            logger.exception("the speed of this machine could not be measured")
        finally:
            self._pass_started = None
            self._measured.set()

    def _note_speed(self) -> None:
        tokens = self.batch_tokens
        self._seconds_per_token = self._speed.seconds(tokens) / tokens

    def _observe(self, flight: Flight) -> int:
        """Where batches overlap, one's time begins when the one before it is done; returns its tokens."""
        now = time.monotonic()
        seconds, self._landed = now - max(flight.started, self._landed), now
        self._speed.observe(flight.launched.computed_tokens, seconds)
        self._note_speed()
        tokens = sum(len(entry.item.tokens) for entry in flight.waiting)
        if self._observer is not None:
            self._observer.observe_batch(len(flight.waiting), tokens, seconds)
        return tokens
