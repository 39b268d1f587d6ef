"""The engine: one thread owns the device and computes waiting sequences of any tasks in one batch."""

import logging
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, TypeVar

import torch

from onebert_encoder.answering.scores import Logits
from onebert_encoder.compute.threads import compute_with
from onebert_encoder.maths.forward import Way
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.context import Context, own_work
from onebert_server.engine.block import Ended
from onebert_server.engine.host import Host
from onebert_server.engine.lane import Lane
from onebert_server.engine.passes import Item
from onebert_server.engine.queue import INFINITY, QueueLimits
from onebert_server.engine.request import Flight, Request, Waiting, tokens_of
from onebert_server.engine.scheduler import Scheduler
from onebert_server.engine.speed import measure_speed, run_bare
from onebert_server.telemetry.metrics import Metrics
from onebert_store.errors import EngineFailed, QueueFull, ShuttingDown

if TYPE_CHECKING:
    from onebert_server.telemetry.tracing import Tracing

logger = logging.getLogger("onebert.engine")

T = TypeVar("T")

# A batch of at least so many seconds lets others run between its layers: one text of 512 tokens may take over 0.25 s on
# a slow processor.
_LONG_BATCH = 0.02
# Seconds after which a start goes on although the device has not finished the first measurement.
MEASURE_TIMEOUT = 60.0


@dataclass(frozen=True)
class EngineLimits:
    """Bounds on one forward pass and on the queue.

    Attributes:
        max_batch_seconds: a pass over this time gets fewer tokens, but never so few that it wastes the device.
    """

    max_batch_tokens: int
    queue: QueueLimits
    max_batch_seconds: float = INFINITY


class Engine:
    """Owns the device; `submit` may be called from any thread, and futures deliver the answers.

    A forward pass runs on `threads` PyTorch threads; None leaves the number to PyTorch. No other thread should compute
    in parallel and stay: each such thread keeps a team of threads, and if all teams together have more threads than the
    machine, libgomp lets none of them spin at a barrier, and a small batch takes twice as long.

    An engine that `overlaps` packs and launches the next batch while the device computes one, if the waiting work fills
    it; a smaller batch waits, and grows, until the device is free. None means: on every device but the CPU.

    All hosts share the device and the queue; each batch is of one of them.

    Attributes:
        hosts: by digest, in the order in which they were given.
        queue: any thread may read its totals.
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
        self._limits = limits
        self._metrics = metrics or Metrics()
        self._tracing = tracing
        self._threads = threads
        self._overlaps = hosts[0].base.device.type != "cpu" if overlaps is None else overlaps
        self._scheduler = Scheduler(limits.queue, self._metrics, makes_way=not self._overlaps)
        self.queue = self._scheduler.queue
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

    def check(self, context: Context) -> None:
        """Raises QueueFull, OverShare, ShuttingDown or EngineFailed if `submit` would refuse the smallest request."""
        self._scheduler.check(context.principal.name)

    def lane(self, answered: Callable[[Ended], None]) -> Lane:
        """Returns the way of one edge to the engine; `answered` gets its requests that have ended."""
        return Lane([*self.hosts.values()], self._queue, self.wake, answered)

    def compute(self, host: Host, tokens: Sequence[Tokens], slot: int, name: str) -> Future[list[Logits]]:
        """Queues a question of the server's own, which is always admitted and never late; the log shows `name`.

        Returns:
            One float32 array per sequence: [labels], or [tokens, labels] for a per-token task.

        Raises:
            ShuttingDown, EngineFailed: the engine takes nothing new, or does not run.
        """
        return self.submit(host, [Item(each, slot) for each in tokens], own_work(name))

    def wake(self) -> None:
        """Starts the requests that were submitted without waking the engine; the running batch goes on."""
        self._scheduler.wake()

    def submit(self, host: Host, items: Sequence[Item], context: Context, wake: bool = True) -> Request:
        """Queues items of one host that are answered together; see `submit_all`."""
        return self.submit_all([(host, items)], context, wake)[0]

    def submit_all(
        self, parts: Sequence[tuple[Host, Sequence[Item]]], context: Context, wake: bool = True
    ) -> list[Request]:
        """Queues a request for each part, all of them or none; never blocks.

        Without `wake` the caller calls `wake` soon.

        Returns:
            Futures of one float32 array per item, in order: [labels], or [tokens, labels] for a per-token task. The
            caller checks whether the numbers are finite.
            One fails with `EngineFailed` when the forward pass raised for it alone, and with `DeadlineExceeded` when
            its work had not begun, or not ended, in time. Cancelling withdraws waiting items at once; the future counts
            as cancelled when none of its items runs any more.

        Raises:
            TooLarge: the items exceed the whole queue.
            QueueFull, OverShare: the queue is full; `retry_after` is about the time until there is room.
            DeadlineExceeded: the deadline has passed already.
            ShuttingDown, EngineFailed: the engine takes nothing new, or does not run.
        """
        requests = [Request(host, items, context, self._scheduler.withdraw) for host, items in parts]
        if filled := [request for request in requests if request.items]:
            self._scheduler.put(filled, wake)
        for request in requests:
            if not request.items:
                request.set_result([])
        return requests

    def submit_shadow(self, host: Host, items: Sequence[Item], context: Context) -> Request | None:
        """Queues a shadow's items for the time when nothing else waits; None if too many wait already."""
        request = Request(host, items, context, self._scheduler.withdraw, waits=True)
        return request if self._scheduler.put_shadow(request) else None

    def _queue(self, host: Host, items: Sequence[Item], context: Context, waits: bool) -> Request:
        if not waits:
            return self.submit(host, items, context, wake=False)
        request = self.submit_shadow(host, items, context)
        if request is None:
            raise QueueFull("as much work of shadows is waiting as the server holds")
        return request

    def launch(self, waiting: Sequence[Waiting], whole: bool = False) -> Flight:
        """The hot path: packs waiting sequences and starts the device on them; never waits for a GPU.

        On a CPU a long batch, unless it runs as a `whole`, lets others run between its layers. It is not charged with
        their time.
        """
        started, beside = time.monotonic(), self._scheduler.beside
        makes_way = not (whole or self._overlaps) and self._is_long(waiting[0].request)
        way = Way(self._scheduler.asked, self._make_way) if makes_way else None
        launched = waiting[0].request.host.passes.launch([entry.item for entry in waiting], way)
        return Flight(waiting, launched, started + (beside.seconds if way else 0.0))

    def land(self, flight: Flight) -> None:
        answers = flight.launched.read()
        # Before any request ends: an ended request reports which batches it was in.
        span = None if self._tracing is None else self._tracing.batch(flight.requests, flight.started)
        for entry, logits in zip(flight.waiting, answers, strict=True):
            entry.request.settle(entry.position, logits)
        tokens = self._observe(flight)
        if span is not None:
            span.set_attributes({"onebert.sequences": len(flight.waiting), "onebert.tokens": tokens})
            span.end()
        self._failed = 0

    def close(self, timeout: float) -> None:
        """Takes nothing new, answers waiting requests for at most `timeout` seconds, and stops the thread.

        Every future has ended then. A forward pass that hangs may still read its rows, but no row is given to another
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

    def batch_tokens(self, host: Host) -> int:
        """Returns the fewest tokens of a batch that lose no capacity of the device; a flood's batch may have more."""
        return host.speed.worthwhile(self._most_tokens(host))

    def _most_tokens(self, host: Host) -> int:
        return host.speed.tokens_within(self._limits.max_batch_seconds, self._limits.max_batch_tokens)

    def _bounds(self, host: Host) -> tuple[int, int]:
        """Returns the tokens that the next batch computes, and its most tokens; shared ones count once per sequence.

        In a flood a batch is longer than a plain one of `batch_tokens`, if others run between its layers.
        """
        most, grows = self._most_tokens(host), host.makes_way and not self._overlaps
        flood = self.queue.flood_seconds(host.speed.seconds(self.batch_tokens(host))) if grows else 0.0
        return host.speed.worthwhile(most, flood), most

    def _run(self) -> None:
        try:
            with torch.inference_mode():
                self._measure()
                self._fly()
        except BaseException:
            logger.critical("the engine's thread dies", exc_info=True)
            self._scheduler.end(EngineFailed("the engine does not run"))

    def _fly(self) -> None:
        flight: Flight | None = None
        while (waiting := self._scheduler.take(self._bounds, flight is not None)) or flight:
            following = self._launched(waiting, flight) if waiting else None
            if flight:
                self._land(flight, following)
            if following and not self._overlaps:
                self._land(following, None)
                following = None
            flight = following

    def _launched(self, waiting: Sequence[Waiting], before: Flight | None) -> Flight | None:
        self._pass_started = self._pass_started or time.monotonic()
        flight = self._attempt(waiting, partial(self.launch, waiting))
        if flight is None:
            self._let_go(before)
        return flight

    def _is_long(self, first: Request) -> bool:
        """Whether the batch that was taken last makes way for others; shadows do even if they are short."""
        host, tokens = first.host, self._scheduler.beside.tokens / first.host.weight
        return first.waits or tokens > self.batch_tokens(host) or host.speed.seconds(tokens) >= _LONG_BATCH

    def _make_way(self) -> None:
        """Between two layers: answers short texts of others. Beside shadows it answers any; long ones make way, too."""
        began, landed, beside = time.monotonic(), self._landed, self._scheduler.beside

        def bounds(host: Host) -> tuple[int, int]:
            return self.batch_tokens(host), self._most_tokens(host)

        if waiting := self._scheduler.take_beside(bounds):
            self._attempt(waiting, lambda: self.land(self.launch(waiting, whole=not beside.empty)))
            self._landed = landed
            self._scheduler.go_on(beside)
        beside.seconds += time.monotonic() - began

    def _land(self, flight: Flight, following: Flight | None) -> None:
        self._attempt(flight.waiting, partial(self.land, flight))
        self._let_go(following)

    def _attempt(self, batch: Sequence[Waiting], compute: Callable[[], T]) -> T | None:
        """Returns the result of `compute`; if it raises an Exception, computes each request of the batch apart."""
        try:
            return compute()
        except Exception:
            logger.exception("a batch of %d sequences failed", len(batch))
        # Outside of the block: the error refers to the memory of the failed pass.
        self._compute_apart(batch)
        return None

    def _compute_apart(self, batch: Sequence[Waiting]) -> None:
        """Computes the requests of a failed batch once more, each apart: one may have broken the pass of all.

        A request that fails again is lost. All are lost if the device fails a batch of the bare base, too.
        """
        parts = dict[Request, list[Waiting]]()
        for entry in batch:
            parts.setdefault(entry.request, []).append(entry)
        host, landed = batch[0].request.host, self._landed
        answers = self._answered(partial(run_bare, host.base, host.bank.rows))
        self._failed = 0 if answers else self._failed + 1
        lost = [request for request, part in parts.items() if not (answers and self._computed(part, len(parts) > 1))]
        # The batch in the air is charged with the time of these passes, which may have waited for it.
        self._landed = landed
        self._scheduler.lose(lost)
        logger.error("%d of the batch's %d requests failed apart", len(lost), len(parts))

    def _computed(self, part: Sequence[Waiting], whole: bool) -> bool:
        """Computes sequences of one request, `whole` or in halves, as memory may hold fewer; returns whether it could.

        Nobody waits for a request that has left; the rows of one that is done may be another version's by now.
        """
        request, half = part[0].request, len(part) // 2
        if request.left or request.done():
            return True
        if whole and self._answered(lambda: self.land(self.launch(part, whole=True))):
            return True
        return half > 0 and all(self._computed(each, whole=True) for each in (part[:half], part[half:]))

    def _answered(self, compute: Callable[[], object]) -> bool:
        try:
            compute()
        except Exception:
            return False
        return True

    def _let_go(self, running: Flight | None) -> None:
        """Releases the finished batch's requests. `running`: the batch launched behind it, if any."""
        self._pass_started = running.started if running else None
        self._scheduler.release(running.requests if running else set())

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
        """Tells the queue the seconds of a waiting token of the slowest host, in batches of `batch_tokens`."""
        seconds = {host: host.speed.seconds(n := self.batch_tokens(host)) / n for host in self.hosts.values()}
        slowest = self.queue.seconds_per_token = max(seconds.values())
        if all(seconds.values()):
            for host, own in seconds.items():
                host.weight = own / slowest

    def _observe(self, flight: Flight) -> int:
        """Returns a batch's tokens. With overlapping batches, a batch's time begins when the one before it is done."""
        now = time.monotonic()
        seconds, self._landed = now - max(flight.started, self._landed), now
        flight.host.speed.observe(flight.launched.computed_tokens, seconds)
        self._note_speed()
        tokens = tokens_of(flight.waiting)
        self._metrics.observe_batch(len(flight.waiting), tokens, seconds)
        return tokens
