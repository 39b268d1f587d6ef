"""The waiting, running and ending requests: the state that the engine's thread shares with its callers' threads."""

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from itertools import pairwise
from queue import Empty, SimpleQueue

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.layout.upload import Array
from onebert_server.engine.block import Block, Ended, questions
from onebert_server.engine.host import Host
from onebert_server.engine.queue import Queue, QueueLimits
from onebert_server.engine.request import Request, Room, Taken, ended_of, hold_rows, let_rows_go, requests_of
from onebert_server.telemetry.metrics import Metrics
from onebert_store.errors import DeadlineExceeded, EngineFailed, OneBertError, RowGone, ShuttingDown

logger = logging.getLogger("onebert.engine")

# A request that is withdrawn so few seconds before its deadline counts as late, not as left: timers fire a little
# early.
DEADLINE_MARGIN = 0.05
# Seconds without other work before a batch of shadows: the answers of the last batch are written meanwhile.
SHADOW_PAUSE = 0.001

Answered = Callable[[Ended], None]
Endings = list[tuple[Answered, Ended]]
"""The requests that have ended, by the edge that gets them."""


class Lane:
    """One edge's way to the engine and back; any thread may call `submit`, `withdraw` and `close`: see `Scheduler`.

    Attributes:
        answered: gets what has ended: on the engine's thread, together for a batch, or in `submit`.
        under_way: its requests by number.
    """

    def __init__(self, scheduler: "Scheduler", answered: Answered) -> None:
        self.answered = answered
        self.under_way: dict[int, Request] = {}
        self.submit, self.withdraw = partial(scheduler.submit, self), partial(scheduler.withdraw, self)
        self.close = partial(scheduler.withdraw, self, None)


class Scheduler:
    """Requests from submission to end. Any thread may call; only the engine's thread takes, settles and gives up.

    A sequence counts as a use of its row until it is dropped or its batch is over: meanwhile no other version is
    written in its place. All state has one lock, the lock of the uses; edges are called without it.

    Attributes:
        queue: see `Queue`; all but what any thread may do happens under the lock.
    """

    def __init__(self, hosts: Sequence[Host], limits: QueueLimits, metrics: Metrics) -> None:
        self.closing = False
        self.queue = Queue(limits, len(hosts))
        self._hosts, self._metrics = hosts, metrics
        self._lanes = set[Lane]()
        self._texts = 0
        self._serves = False
        self._lock = hosts[0].bank.bound.using
        # The engine's thread sleeps until the bell rings, which is rung only if it is idle.
        self._idle = False
        self._bell = SimpleQueue[None]()

    def open(self) -> None:
        self._serves = True

    def lane(self, answered: Answered) -> Lane:
        """Returns the way of one edge to the engine; `answered` gets its requests that have ended."""
        lane = Lane(self, answered)
        with self._lock:
            self._lanes.add(lane)
        return lane

    def refusal(self, principal: str) -> OneBertError | None:
        """Returns why a lane would refuse the smallest request now. It takes no lock: only `put` decides."""
        if self.closing or not self._serves:
            return self._closed()
        return self.queue.refusal(principal) if self.queue.sequences else None

    def submit(self, lane: Lane, block: Block) -> None:
        """Queues each request, or ends it at once: its lane then gets the error before this returns. Never blocks.

        Errors of requests:
            TooLarge: the request exceeds the whole queue.
            QueueFull, OverShare: the queue is full; `retry_after` is about the time until there is room.
            DeadlineExceeded: the deadline has passed already; or later, before the request's work had begun.
            RowGone: a row has left memory, or its task has changed.
            EngineFailed: the engine does not run; or later, when the forward pass raised for this request alone.
            ShuttingDown: the engine takes nothing new.

        Whoever gets a block from another process calls `validate` first.
        """
        with self._lock:
            now = time.monotonic()
            requests = requests_of(lane, block, self._hosts, self._texts)
            self._texts += len(block.sequences)
            done = self._queue(block, requests, now)
            if self._idle:
                self._wake()
            endings = ended(done, now) if done else []
        if endings:
            deliver(endings)

    def take(self, only_full: bool) -> Taken | None:
        """Returns the next batch; blocks until there is one, and drops late requests that it meets.

        No batch comes once the engine is closing and nothing waits. With `only_full` it does not block, and returns
        nothing unless more than the batch takes is waiting.
        """
        idle = time.monotonic()
        while True:
            if not (only_full or self.queue.sequences):
                self._wait(idle)
            with self._lock:
                if only_full and not self.queue.fills():
                    return None
                now = time.monotonic()
                room = self.queue.take(now)
                if room is None and not self.closing:
                    room = self.queue.take_shadows(now)
                if room is None:
                    if self.closing:
                        return None
                    continue
                late = self._begin(room)
            if late:
                deliver(late)
            if room.parts:
                return Taken([*room.parts.values()])

    def settle(self, taken: Taken, logits: NDArray[np.float32], sizes: Array) -> None:
        """After a batch: answers the requests that have all of their logits."""
        with self._lock:
            if not self._serves:
                return
            start, stops = 0, [0, *sizes.cumsum().tolist()]
            for request, first, stop in taken.parts:
                end = start + stop - first
                request.add(first, sizes[start:end], logits[stops[start] : stops[end]])
                start = end
            endings = self._let_go(taken)
        if endings:
            deliver(endings)

    def give_up(self, taken: Taken, lost: bool) -> None:
        """After a batch that failed: it is not computed. Its requests are `lost`, or nobody waits for them."""
        with self._lock:
            if not self._serves:
                return
            for request, first, stop in taken.parts:
                if lost:
                    request.lose(EngineFailed("the forward pass failed"))
                self._drop(request)
                request.left -= stop - first
            endings = self._let_go(taken)
        deliver(endings)

    def is_left(self, taken: Taken) -> bool:
        """Whether nobody waits for a batch's first request any more."""
        return not self._serves or taken.parts[0][0].gone

    def withdraw(self, lane: Lane, numbers: Sequence[int] | None) -> None:
        """Withdraws requests that nobody waits for, or closes a lane with all of its requests."""
        now = time.monotonic()
        with self._lock:
            if numbers is None:
                self._lanes.discard(lane)
            numbers = [*lane.under_way] if numbers is None else numbers
            requests = [lane.under_way.pop(number) for number in numbers if number in lane.under_way]
            # A request that is late is not counted as left: its client is there, and gets a refusal.
            left, states = dict[str, int]({"left": 0, "deadline": 0}), [0, 0, 0]
            for request in requests:
                request.lose(None)
                waiting, is_late = self._drop(request), now >= request.deadline - DEADLINE_MARGIN
                if request.idle:
                    continue
                left["deadline" if is_late else "left"] += waiting > 0
                if not is_late:
                    running = request.left
                    computed = len(request.sequences) - waiting - running
                    states = [sum(counts) for counts in zip(states, (waiting, running, computed), strict=True)]
        self._metrics.count_dropped("left", left["left"])
        self._metrics.count_dropped("deadline", left["deadline"])
        self._metrics.count_left(*states)

    def close(self) -> None:
        """Lets nothing new in; waiting requests are still taken, but no shadows."""
        with self._lock:
            self.closing = True
            self._wake()

    def end(self, error: OneBertError) -> None:
        """Ends every unfinished request with this error, and lets nothing more in."""
        with self._lock:
            self._serves = False
            requests = [request for lane in self._lanes for request in lane.under_way.values()]
            for request in requests:
                request.lose(error)
                self._drop(request)
            endings = ended(requests, time.monotonic())
        deliver(endings)

    def _closed(self) -> OneBertError | None:
        """The error of every request, unless the engine takes new ones."""
        if self.closing:
            return ShuttingDown("the server is shutting down")
        return None if self._serves else EngineFailed("the engine does not run")

    def _wake(self) -> None:
        self._idle = False
        self._bell.put(None)

    def _wait(self, since: float) -> None:
        """Sleeps while nothing waits; it wakes for shadows when their pause is over."""
        queue = self.queue
        while not (queue.sequences or self.closing):
            left = since + SHADOW_PAUSE - time.monotonic() if queue.shadows.sequences else None
            if left is not None and left <= 0:
                return
            # Look once more: the bell did not ring for what came before this.
            self._idle = True
            if queue.sequences or self.closing or (left is None and queue.shadows.sequences):
                continue
            with suppress(Empty):
                self._bell.get(timeout=left)

    def _queue(self, block: Block, requests: Sequence[Request], now: float) -> list[Request]:
        """Queues the requests of a block; returns those that have nothing left, the refused ones with their errors."""
        missing, done, closed = hold_rows(self._hosts, block, requests), list[Request](), self._closed()
        groups: Iterable[Sequence[Request]] = zip(requests, strict=True)
        if len(self._hosts) > 1:
            starts = [*np.flatnonzero(questions(block.requests)).tolist(), len(requests)]
            groups = [requests[start:stop] for start, stop in pairwise(starts)]
        for question in groups:
            error = closed
            if error is None and missing and not missing.isdisjoint(question):
                error = RowGone("the version has changed or is not in memory any more")
            elif error is None:
                error = self.queue.put(question, now)
            for request in question:
                request.lane.under_way[request.number] = request
                if error is not None:
                    if request not in missing:
                        let_rows_go(self._hosts, request, 0)
                    request.lose(error)
                    request.left = 0
                if not request.left:
                    done.append(request)
        return done

    def _drop(self, request: Request) -> int:
        """Gives up what waits of a request; returns how many sequences."""
        if waiting := len(request.sequences) - request.taken:
            let_rows_go(self._hosts, request, request.taken)
            self.queue.lines[request.host].drop(request)
            request.left -= waiting
        return waiting

    def _begin(self, room: Room) -> Endings:
        """Notes that requests are in a batch now, and drops the late ones; one that a batch reads ends after it."""
        waits = list[float]()
        for request, first, _ in room.parts.values():
            if not first:
                request.began = room.now
                # A shadow waits for nothing.
                waits += () if request.idle else (room.now - request.submitted,)
        if waits:
            self._metrics.observe_waits(waits)
        if not room.late:
            return []
        for request, first in room.late:
            let_rows_go(self._hosts, request, first)
            request.left -= len(request.sequences) - first
            request.lose(DeadlineExceeded("the request's time was over before its work was done"))
        self._metrics.count_dropped("deadline", len(room.late))
        return ended([request for request, _ in room.late if not request.left], room.now)

    def _let_go(self, taken: Taken) -> Endings:
        """After a batch: its rows are free, and its requests that have nothing left end."""
        self._hosts[taken.host].bank.let_go(taken.slots)
        done = list[Request]()
        for request, *_ in taken.parts:
            if not request.left:
                done.append(request)
        return ended(done, time.monotonic()) if done else []


def ended(requests: Iterable[Request], now: float) -> Endings:
    """Takes requests off their lanes; returns the ones that somebody waits for."""
    by_lane = dict[Lane, list[Request]]()
    for request in requests:
        # A withdrawn one is off its lane.
        if request.lane.under_way.pop(request.number, None) is not None:
            by_lane.setdefault(request.lane, []).append(request)
    endings: Endings = []
    for lane, of_lane in by_lane.items():
        endings.append((lane.answered, ended_of(of_lane, now)))
    return endings


def deliver(endings: Endings) -> None:
    """Calls edges; one that fails touches nobody else."""
    for answered, requests in endings:
        try:
            answered(requests)
        except Exception:
            logger.exception("an edge failed to take its answers")
