"""The waiting, running and ending requests: the state that the engine's thread shares with its callers' threads."""

import ctypes
import threading
import time
from collections import deque
from collections.abc import Iterable, Sequence
from concurrent.futures import Future

from onebert_server.engine.beside import Beside
from onebert_server.engine.queue import Bounds, FairQueue, QueueLimits
from onebert_server.engine.request import Request, Waiting
from onebert_server.telemetry.metrics import Metrics
from onebert_store.errors import DeadlineExceeded, EngineFailed, OneBertError, ShuttingDown

# A request that is cancelled so few seconds before its deadline counts as late, not as left: timers fire a little
# early, and a front end's deadline is later here, by the time that the request was on its way.
DEADLINE_MARGIN = 0.05
# Tokens of shadows that may wait, and estimated seconds of a batch of them: a request that comes meanwhile waits for
# one layer of it.
MAX_SHADOW_TOKENS = 16_384
SHADOW_SECONDS = 0.006
# Seconds without other work before a batch of shadows: the answers of the last batch are written meanwhile.
SHADOW_PAUSE = 0.001


class Scheduler:
    """Requests from submission to end. Any thread may call; only the engine's thread takes and releases.

    A request that ends without answers ends as soon as no batch reads its rows, and not before: its submitter then
    gives the rows back, and another version may be written in their place.

    Attributes:
        queue: any thread may read its totals and `check` it; all else happens under the lock.
        beside: the room between the layers of the batch that was taken last; empty where batches overlap.
        asked: 1 if anybody waits who may run there, perhaps; a long batch then makes way (`take_beside`).
    """

    def __init__(self, limits: QueueLimits, metrics: Metrics, makes_way: bool) -> None:
        self.closing = False
        self.queue = FairQueue(limits)
        self._metrics = metrics
        self._makes_way = makes_way
        self.beside = Beside()
        self.asked = ctypes.c_int32(0)
        self._running: set[Request] = set()
        self._shadows: deque[tuple[Request, int]] = deque()
        self._shadow_tokens = 0
        self._serves = False
        self._changed = threading.Condition()

    def open(self) -> None:
        with self._changed:
            self._serves = True

    def check(self, principal: str) -> None:
        """See `Engine.check`. It takes no lock: only `put` decides."""
        self._check_open()
        self.queue.check(principal)

    def put(self, requests: Sequence[Request], wake: bool) -> None:
        """Queues requests and, with `wake`, notifies the engine's thread; raises the errors of `Engine.submit_all`."""
        with self._changed:
            self._check_open()
            self.queue.put(requests, requests[0].submitted)
            if self.beside.empty or self.queue.may_run_beside(requests[0].principal, self.beside):
                self.asked.value = 1
            if wake:
                self._changed.notify()

    def put_shadow(self, request: Request) -> bool:
        """Queues a shadow's request, which is taken while nothing else waits; returns whether there is room for it."""
        tokens = sum(request.lengths)
        with self._changed:
            if self.closing or not self._serves or self._shadow_tokens + tokens > MAX_SHADOW_TOKENS:
                return False
            self._shadows.extend((request, position) for position in range(len(request.items)))
            self._shadow_tokens += tokens
            self._changed.notify()
            return True

    def wake(self) -> None:
        with self._changed:
            self._changed.notify()

    def take(self, bounds: Bounds, only_full: bool) -> list[Waiting]:
        """Returns the next batch; blocks until there is one, and first drops late requests.

        The batch is empty once the engine is closing and nothing waits. With `only_full` it does not block, and returns
        nothing unless more than the batch takes is waiting.
        """
        idle = time.monotonic()
        while True:
            with self._changed:
                if only_full and not self.queue.fills(bounds):
                    return []
                while not (self.queue.sequences or self.closing):
                    left = idle + SHADOW_PAUSE - time.monotonic() if self._shadows else None
                    if left is not None and left <= 0:
                        break
                    self._changed.wait(left)
                late, taken = self._take(bounds)
                self._run(Beside(taken if self._makes_way else ()))
                taken = taken or self._take_shadows(bounds)
            self._drop(late)
            if taken or (self.closing and not self.queue.sequences):
                return self._observed(taken)

    def take_beside(self, bounds: Bounds) -> list[Waiting]:
        """Returns short sequences of who may run between the layers of the running batch; never blocks.

        After an empty one `asked` is 0 until such a principal asks again. Beside shadows it returns a batch like any
        other, which makes way itself until `go_on`.
        """
        with self._changed:
            late, taken = self._take(bounds, self.beside)
            if not taken:
                self.asked.value = 0
            elif self.beside.empty:
                self._run(Beside(taken))
        self._drop(late)
        return self._observed(taken)

    def go_on(self, beside: Beside) -> None:
        """Goes on with a batch that made way, and may do so again."""
        with self._changed:
            self._run(beside)

    def lose(self, requests: Iterable[Request]) -> None:
        """Marks the requests of a failed batch: none of their other sequences is computed."""
        with self._changed:
            for request in requests:
                self.queue.remove(request)
                request.left, request.error = True, EngineFailed("the forward pass failed")

    def release(self, still: set[Request]) -> None:
        """After a batch: ends requests that left, were late or were lost, except those `still` in a batch."""
        with self._changed:
            left = [request for request in self._running - still if request.left]
            self._running &= still
        for request in left:
            if request.error is not None:
                request.fail(request.error)
            else:
                Future.cancel(request)

    def withdraw(self, request: Request) -> bool:
        """Withdraws a request that nobody waits for; returns whether its future is cancelled, or will be.

        Well before the deadline this means that the client has left; the queue learns how long this principal's clients
        wait.
        """
        now = time.monotonic()
        with self._changed:
            if request.done():
                return request.cancelled()
            request.left = True
            waiting = self.queue.remove(request)
            running = request in self._running
            if left := now < request.deadline - DEADLINE_MARGIN:
                self.queue.note_left(request.principal, now - request.submitted, now)
        if waiting:
            self._metrics.count_dropped("left" if left else "deadline")
        self._metrics.count_left(waiting, len(request.items) - waiting - request.computed, request.computed)
        return running or Future.cancel(request)

    def close(self) -> None:
        """Lets nothing new in; waiting requests are still taken, but no shadows."""
        with self._changed:
            self.closing = True
            self._changed.notify()

    def end(self, error: OneBertError) -> None:
        """Ends every unfinished request with this error, and lets nothing more in."""
        with self._changed:
            self._serves = False
            left = {*self.queue.clear(), *(request for request, _ in self._shadows), *self._running}
            self._shadows.clear()
            self._shadow_tokens = 0
        for request in left:
            request.fail(error)

    def _check_open(self) -> None:
        if self.closing:
            raise ShuttingDown("the server is shutting down")
        if not self._serves:
            raise EngineFailed("the engine does not run")

    def _run(self, beside: Beside) -> None:
        self.beside = beside
        self.asked.value = self.queue.others_wait(beside.served)

    def _take(self, bounds: Bounds, beside: Beside | None = None) -> tuple[list[Request], list[tuple[Request, int]]]:
        """Returns the requests that are late, and the next batch, or what runs beside one that is not empty."""
        now = time.monotonic()
        late = self.queue.expire(now)
        if beside is None or beside.empty:
            taken = self.queue.take(bounds, now)
        else:
            taken = self.queue.take_beside(beside, bounds, now)
        self._running |= {request for request, _ in taken}
        return late, taken

    def _take_shadows(self, bounds: Bounds) -> list[tuple[Request, int]]:
        """Returns a small batch of shadows' sequences of one base, in the order in which they came."""
        taken = list[tuple[Request, int]]()
        room = 0
        while self._shadows and not self.closing:
            request, position = self._shadows[0]
            if not taken:
                room = request.host.speed.tokens_within(SHADOW_SECONDS, bounds(request.host)[0])
            elif request.host is not taken[0][0].host or request.lengths[position] > room:
                break
            self._shadows.popleft()
            self._shadow_tokens -= request.lengths[position]
            if not request.left:
                taken.append((request, position))
                room -= request.lengths[position]
        self._running |= {request for request, _ in taken}
        return taken

    def _drop(self, late: Sequence[Request]) -> None:
        for request in late:
            error = DeadlineExceeded("the request's time was over before its work was done")
            # A running batch may read its rows. No lock: `_running` changes only on this thread.
            if request in self._running:
                request.left, request.error = True, error
            else:
                request.fail(error)
            self._metrics.count_dropped("deadline")

    def _observed(self, taken: Iterable[tuple[Request, int]]) -> list[Waiting]:
        now = time.monotonic()
        for request, position in taken:
            if position == 0 and not request.waits:
                request.began = now
                self._metrics.observe_waits([now - request.submitted])
        return [Waiting(request.items[position], request, position) for request, position in taken]
