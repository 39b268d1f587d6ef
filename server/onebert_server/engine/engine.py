"""The engine: one thread owns the device and computes waiting sequences of any tasks in one batch."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from math import inf
from typing import TYPE_CHECKING

import torch

from onebert_encoder.compute.threads import compute_with
from onebert_server.engine.host import Host, measure_speed, run_bare
from onebert_server.engine.own_questions import OwnQuestions
from onebert_server.engine.queue import QueueLimits
from onebert_server.engine.request import Taken
from onebert_server.engine.scheduler import Scheduler
from onebert_server.telemetry.metrics import Metrics
from onebert_store.errors import EngineFailed, ShuttingDown

if TYPE_CHECKING:
    from onebert_server.telemetry.tracing import Tracing

logger = logging.getLogger("onebert.engine")

# Seconds after which a start goes on although the device has not finished the first measurement.
MEASURE_TIMEOUT = 60.0
# Batches between two looks at the speed of this machine, by which batches are sized.
_NOTED = 16


@dataclass(frozen=True)
class EngineLimits:
    """Bounds on one forward pass and on the queue.

    Attributes:
        max_batch_seconds: a pass over this time gets fewer tokens, but never so few that it wastes the device.
    """

    max_batch_tokens: int
    queue: QueueLimits
    max_batch_seconds: float = inf


class Engine:
    """Owns the device; edges submit their requests to `lane`s from any thread, and are called with the answers.

    A forward pass runs on `threads` PyTorch threads; None leaves the number to PyTorch. No other thread should compute
    in parallel and stay: each such thread keeps a team of threads, and if all teams together have more threads than the
    machine, libgomp lets none of them spin at a barrier, and a small batch takes twice as long.

    An engine that `overlaps` packs and launches the next batch while the device computes one, if the waiting work fills
    it; a smaller batch waits, and grows, until the device is free. None means: on every device but the CPU.

    All hosts share the device and the queue; each batch is of one of them.

    Attributes:
        hosts: by digest, in the order in which they were given.
        queue: any thread may read its totals.
        lane, refusal: see `Scheduler`.
        ask: see `OwnQuestions`.
    """

    def __init__(
        self,
        hosts: Sequence[Host],
        limits: EngineLimits,
        metrics: Metrics | None = None,
        threads: int | None = None,
        overlaps: bool | None = None,
        tracing: "Tracing | None" = None,
    ) -> None:
        self.hosts = {host.digest: host for host in hosts}
        self._hosts = [*self.hosts.values()]
        self._limits = limits
        self._metrics = metrics or Metrics()
        self._tracing = tracing
        self._threads = threads
        self._overlaps = hosts[0].base.device.type != "cpu" if overlaps is None else overlaps
        self._scheduler = Scheduler(self._hosts, limits.queue, self._metrics)
        self.queue = self._scheduler.queue
        self._observed = 0
        self._note_speed()
        self.lane, self.refusal = self._scheduler.lane, self._scheduler.refusal
        self.ask = OwnQuestions(self._hosts, self._scheduler).ask
        self._landed = 0.0
        self._failed = 0
        self._pass_started: float | None = None
        self._measured = threading.Event()
        self._thread = threading.Thread(target=self._run, name="onebert-engine", daemon=True)

    def start(self) -> None:
        """Starts the owner thread and measures the machine's speed; nothing else should compute until it returns."""
        self._scheduler.open()
        self._thread.start()
        self._measured.wait(MEASURE_TIMEOUT)

    def launch(self, taken: Taken) -> None:
        """The hot path: packs a batch and starts the device on it; never waits for a GPU."""
        taken.started = time.monotonic()
        taken.launched = self._hosts[taken.host].passes.launch(taken.inputs, taken.slots)

    def land(self, taken: Taken) -> None:
        """Ends the requests of a batch, and counts it: with overlapping ones its time begins as the last one ends."""
        launched = taken.launched
        logits = launched.copy.read()
        # Before any request ends: an ended request reports which batches it was in.
        span = None if self._tracing is None else self._tracing.batch([part[0] for part in taken.parts], taken.started)
        self._scheduler.settle(taken, logits, launched.sizes)
        try:
            now = time.monotonic()
            seconds, self._landed = now - max(taken.started, self._landed), now
            self._hosts[taken.host].speed.observe(launched.computed_tokens, seconds)
            self._observed += 1
            if self._observed % _NOTED == 0:
                self._note_speed()
            self._metrics.observe_batch(len(taken.slots), taken.num_tokens, seconds)
            if span is not None:
                span.set_attributes({"onebert.sequences": len(taken.slots), "onebert.tokens": taken.num_tokens})
                span.end()
        except Exception:
            # Its requests have ended: others may have their places by now, and computing it again would be for them.
            logger.exception("a batch could not be counted")
        self._failed = 0

    def close(self, timeout: float) -> None:
        """Takes nothing new, answers waiting requests for at most `timeout` seconds, and stops the thread.

        Every request has ended then. A forward pass that hangs may still read its rows, but no row is given to another
        version any more.
        """
        self._scheduler.close()
        self._thread.join(timeout)
        self._scheduler.end(ShuttingDown("the server is shutting down"))

    @property
    def alive(self) -> bool:
        return self._thread.is_alive() and not self._scheduler.closing

    @property
    def dead(self) -> bool:
        """Whether the owner thread has ended although nobody closed the engine; false before `start`."""
        return self._thread.ident is not None and not self._thread.is_alive() and not self._scheduler.closing

    @property
    def pass_seconds(self) -> float:
        """Seconds that the running forward pass has taken so far; 0 if none runs."""
        started = self._pass_started
        return 0.0 if started is None else time.monotonic() - started

    @property
    def failed_in_a_row(self) -> int:
        """The number of batches since the device computed one, whosesoever; no request alone raises it."""
        return self._failed

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                self._measure()
                self._fly()
        except BaseException:
            logger.critical("the engine's thread dies", exc_info=True)
            self._scheduler.end(EngineFailed("the engine does not run"))

    def _fly(self) -> None:
        flying: Taken | None = None
        while (taken := self._scheduler.take(flying is not None)) or flying:
            if taken:
                self._pass_started = self._pass_started or time.monotonic()
                taken = taken if self._attempt(taken, self.launch) else None
            if flying:
                self._attempt(flying, self.land)
            if taken and not self._overlaps:
                self._attempt(taken, self.land)
                taken = None
            flying = taken
            self._pass_started = flying.started if flying else None

    def _attempt(self, taken: Taken, work: Callable[[Taken], None]) -> bool:
        """Does `work`, and returns whether it raised no Exception; else each request of the batch is computed apart."""
        try:
            work(taken)
            return True
        except Exception:
            logger.exception("a batch of %d sequences failed", len(taken.slots))
        # Outside of the block: the error refers to the memory of the failed pass.
        self._compute_apart(taken)
        return False

    def _compute_apart(self, taken: Taken) -> None:
        """Computes the requests of a failed batch once more, each apart: one may have broken the pass of all.

        A request that fails again is lost. All are lost if the device fails a batch of the bare base, too.
        """
        host, landed = self._hosts[taken.host], self._landed
        answers = self._answered(partial(run_bare, host.base, host.bank.rows))
        self._failed = 0 if answers else self._failed + 1
        lost = 0
        for part in taken.alone():
            if answers:
                lost += not self._compute_part(part, len(taken.parts) > 1)
            else:
                self._scheduler.give_up(part, lost=True)
                lost += 1
        # The batch in the air is charged with the time of these passes, which may have waited for it.
        self._landed = landed
        logger.error("%d of the batch's %d requests failed apart", lost, len(taken.parts))

    def _compute_part(self, part: Taken, whole: bool) -> bool:
        """Computes sequences of one request, `whole` or in halves, as memory may hold fewer; returns whether it could.

        Nobody waits for a request that has left.
        """
        if self._scheduler.is_left(part):
            self._scheduler.give_up(part, lost=False)
            return True
        if whole and self._answered(partial(self._compute, part)):
            return True
        if len(part.slots) == 1:
            self._scheduler.give_up(part, lost=True)
            return False
        # A half that fails ends the request, so that the other one is not computed.
        computed = [self._compute_part(half, whole=True) for half in part.halves()]
        return all(computed)

    def _compute(self, taken: Taken) -> None:
        self.launch(taken)
        self.land(taken)

    def _answered(self, compute: Callable[[], object]) -> bool:
        try:
            compute()
        except Exception:
            return False
        return True

    def _measure(self) -> None:
        try:
            if self._threads is not None:
                compute_with(self._threads)
            self._pass_started = time.monotonic()
            for host in self.hosts.values():
                host.speed = measure_speed(host.base, host.bank.rows)
            self._note_speed()
        except Exception:
            # Catch everything: a device that fails these batches may answer the next ones, and if not, each request
            # gets its error. Without a measured speed only sequences and tokens bound the queue.
            logger.exception("the speed of this machine could not be measured")
        finally:
            self._pass_started = None
            self._measured.set()

    def _note_speed(self) -> None:
        """Sizes batches, and tells the queue the seconds of a computed token in them."""
        for host, line in zip(self._hosts, self.queue.lines, strict=True):
            line.most_tokens = host.speed.tokens_within(self._limits.max_batch_seconds, self._limits.max_batch_tokens)
            line.batch_tokens = host.speed.worthwhile(line.most_tokens)
            line.seconds_per_token = host.speed.seconds(line.batch_tokens) / line.batch_tokens
