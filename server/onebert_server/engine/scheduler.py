"""The waiting, running and ending requests: the state that the engine's thread shares with its callers' threads."""

import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from itertools import pairwise
from queue import Empty, SimpleQueue

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.layout.upload import Array
from onebert_server.engine.block import Block, questions
from onebert_server.engine.host import Host
from onebert_server.engine.lane import Answered, Endings, Lane, deliver, ended
from onebert_server.engine.queue import Bounds, Queue, QueueLimits
from onebert_server.engine.request import Request, Room, Taken, hold_rows, let_rows_go, requests_of
from onebert_server.telemetry.metrics import Metrics
from onebert_store.errors import DeadlineExceeded, EngineFailed, OneBertError, RowGone, ShuttingDown

# A request that is withdrawn so few seconds before its deadline counts as late, not as left: timers fire a little
# early.
DEADLINE_MARGIN = 0.05
# Seconds without other work before a batch of shadows: the answers of the last batch are written meanwhile.
SHADOW_PAUSE = 0.001


class Scheduler:
    """Requests from submission to end. Any thread may call; only the engine's thread takes, settles and gives up.

    A sequence counts as a use of its row until it is dropped or its batch is over: meanwhile no other version is
    written in its place. All state has one lock, the lock of the uses; edges are called without it.

    Attributes:
        queue: any thread may read its totals and `check` it; all else happens under the lock.
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
        lane = Lane(self, answered)
        with self._lock:
            self._lanes.add(lane)
        return lane

    def check(self, principal: str) -> None:
        """See `Engine.check`. It takes no lock: only `put` decides."""
        if (closed := self._closed()) is not None:
            raise closed
        self.queue.check(principal)

    def put(self, lane: Lane, block: Block) -> Endings:
        """Queues the requests of a block and wakes the engine's thread; returns requests that have ended already."""
        with self._lock:
            now, closed = time.monotonic(), self._closed()
            requests = [*requests_of(lane, block, self._hosts, self._texts)]
            self._texts += len(block.sequences)
            lane.under_way.update((request.number, request) for request in requests)
            if closed is None:
                self._queue(block, requests, now)
                self._wake()
            else:
                for request in requests:
                    request.lose(closed)
                    request.left = 0
            return ended([request for request in requests if not request.left], now)

    def take(self, bounds: Bounds, only_full: bool) -> Taken | None:
        """Returns the next batch; blocks until there is one, and drops late requests that it meets.

        No batch comes once the engine is closing and nothing waits. With `only_full` it does not block, and returns
        nothing unless more than the batch takes is waiting.
        """
        idle = time.monotonic()
        while True:
            if not only_full:
                self._wait(idle)
            with self._lock:
                if only_full and not self.queue.fills(bounds):
                    return None
                now = time.monotonic()
                room = self.queue.take(bounds, now)
                if room is None and not self.closing:
                    room = self.queue.take_idle(bounds, now)
                late, taken = self._begin(room), _taken(room)
            deliver(late)
            if taken is not None or (self.closing and not self.queue.sequences):
                return taken

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
            self._hosts[taken.host].bank.let_go(taken.slots)
            endings = ended([request for request, *_ in taken.parts if not request.left], time.monotonic())
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
            self._hosts[taken.host].bank.let_go(taken.slots)
            endings = ended([request for request, *_ in taken.parts if not request.left], time.monotonic())
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
        if self._idle:
            self._idle = False
            self._bell.put(None)

    def _wait(self, since: float) -> None:
        """Sleeps while nothing waits; it wakes for shadows when their pause is over."""
        queue = self.queue
        while not (queue.sequences or self.closing):
            left = since + SHADOW_PAUSE - time.monotonic() if queue.idle_waits else None
            if left is not None and left <= 0:
                return
            # Look once more: the bell did not ring for what came before this.
            self._idle = True
            if queue.sequences or self.closing or (left is None and queue.idle_waits):
                continue
            with suppress(Empty):
                self._bell.get(timeout=left)

    def _queue(self, block: Block, requests: Sequence[Request], now: float) -> None:
        """Queues the requests of a block; the refused ones have their errors, and nothing left."""
        missing = hold_rows(self._hosts, block, requests)
        for question in self._questions(block, requests):
            error: OneBertError | None = None
            if missing and not missing.isdisjoint(question):
                error = RowGone("the version has changed or is not in memory any more")
            elif waiting := [request for request in question if request.left]:
                error = self.queue.put(waiting, now)
            for request in question if error is not None else ():
                if request not in missing:
                    let_rows_go(self._hosts, request, 0)
                request.lose(error)
                request.left = 0

    def _questions(self, block: Block, requests: Sequence[Request]) -> Iterable[Sequence[Request]]:
        if len(self._hosts) == 1:
            return ([request] for request in requests)
        starts = [*np.flatnonzero(questions(block.requests)).tolist(), len(requests)]
        return (requests[start:stop] for start, stop in pairwise(starts))

    def _drop(self, request: Request) -> int:
        """Gives up what waits of a request; returns how many sequences."""
        if waiting := len(request.sequences) - request.taken:
            let_rows_go(self._hosts, request, request.taken)
            request.flow.drop(request)
            request.left -= waiting
        return waiting

    def _begin(self, room: Room | None) -> Endings:
        """Notes that requests are in a batch now, and drops the late ones; one that a batch reads ends after it."""
        if room is None:
            return []
        waits = list[float]()
        for request, (first, _) in room.parts.items():
            # A shadow waits for nothing.
            if not (first or request.idle):
                waits.append(room.now - request.submitted)
            request.began = request.began if first else room.now
        if room.parts:
            self._metrics.observe_waits(waits)
        for request, first in room.late:
            let_rows_go(self._hosts, request, first)
            request.left -= len(request.sequences) - first
            request.lose(DeadlineExceeded("the request's time was over before its work was done"))
        if room.late:
            self._metrics.count_dropped("deadline", len(room.late))
        return ended([request for request, _ in room.late if not request.left], room.now)


def _taken(room: Room | None) -> Taken | None:
    """Returns what a batch takes, if it takes anything."""
    if room is None or not room.parts:
        return None
    return Taken([(request, *places) for request, places in room.parts.items()])
