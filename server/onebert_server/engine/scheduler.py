"""Which requests wait, run and end: what the engine's thread shares with the threads of its callers."""

import threading
import time
from collections.abc import Collection, Iterable, Sequence
from concurrent.futures import Future

from onebert_server.engine.observer import Observer
from onebert_server.engine.queue import FairQueue, QueueLimits
from onebert_server.engine.request import Request, Waiting
from onebert_store.errors import DeadlineExceeded, EngineFailed, OneBertError, ShuttingDown

# Whoever gives a request up so few seconds before its deadline has not left: timers fire a little early, and the
# deadline of a front end's request is later here than there, by the time that the request was on its way.
DEADLINE_MARGIN = 0.05


class Scheduler:
    """Requests from when they are submitted until they end. Any thread may call; only the engine's takes and releases.

    A request that is to end without its answers ends as soon as no batch reads its rows, and not before: whoever
    submitted it then gives its rows back, and another version may be written where they were.

    Attributes:
        closing: whether nothing new is let in, and the engine stops when nothing waits.
    """

    def __init__(self, limits: QueueLimits, observer: Observer | None) -> None:
        self.closing = False
        self._observer = observer
        self._queue: FairQueue[Request] = FairQueue(limits)
        self._running: set[Request] = set()
        self._serves = False
        self._changed = threading.Condition()

    @property
    def sequences(self) -> int:
        """Sequences that wait."""
        return self._queue.sequences

    @property
    def tokens(self) -> int:
        """Tokens that wait."""
        return self._queue.tokens

    def open(self) -> None:
        """Lets requests in, from now on."""
        with self._changed:
            self._serves = True

    def check(self, principal: str, seconds_per_token: float) -> None:
        """Refuses what `put` would refuse of this principal however small it were.

        Raises:
            QueueFull, OverShare, ShuttingDown, EngineFailed: see `put`.
        """
        with self._changed:
            self._check_open()
            self._queue.check(principal, seconds_per_token)

    def put(self, request: Request, seconds_per_token: float, wake: bool = True) -> None:
        """Lets a request wait; with `wake` the engine's thread looks at once whether it can begin.

        Raises:
            TooLarge, QueueFull, OverShare, DeadlineExceeded: see `FairQueue.put`.
            ShuttingDown: the engine is closing.
            EngineFailed: nobody would take the request out again.
        """
        with self._changed:
            self._check_open()
            self._queue.put(request, request.submitted, seconds_per_token)
            if wake:
                self._changed.notify()

    def wake(self) -> None:
        """Has the engine's thread look what waits."""
        with self._changed:
            self._changed.notify()

    def take(self, max_cost: int, max_tokens: int, only_full: bool) -> list[Waiting]:
        """The next batch; blocks until there is one, and drops what is late before it costs a forward pass.

        Args:
            max_cost: tokens that it computes, see `FairQueue.take`.
            max_tokens: tokens that it holds.
            only_full: to take nothing, and not to block, unless more than `max_cost` tokens wait.

        Returns:
            The sequences to compute; none where the engine is closing and nothing waits, or the batch is not full.
        """
        while True:
            with self._changed:
                if only_full and self._queue.tokens <= max_cost:
                    return []
                while not (self._queue.sequences or self.closing):
                    self._changed.wait()
            waiting = self._take(max_cost, max_tokens, None)
            if waiting or (self.closing and not self._queue.sequences):
                return waiting

    def take_beside(self, running: Iterable[Request], max_tokens: int) -> list[Waiting]:
        """A batch of short sequences of others than those whose requests are `running`; never blocks, may be empty."""
        return self._take(max_tokens, max_tokens, {request.principal for request in running})

    def lose(self, requests: Iterable[Request]) -> None:
        """A batch with something of each of these requests has failed: nothing more of them is computed."""
        with self._changed:
            for request in requests:
                self._queue.remove(request)
                request.left, request.error = True, EngineFailed("the forward pass failed")

    def release(self, still: set[Request]) -> None:
        """After a batch: requests whose client left, that were late or lost end, except those `still` in a batch."""
        with self._changed:
            left = [request for request in self._running - still if request.left]
            self._running &= still
        for request in left:
            if request.error is not None:
                request.fail(request.error)
            else:
                Future.cancel(request)

    def withdraw(self, request: Request) -> bool:
        """Nobody waits for a request any more; returns whether its future is cancelled, or will be.

        Well before its deadline that is because its client has left, which says how long this principal's clients wait.
        """
        now = time.monotonic()
        with self._changed:
            if request.done():
                return request.cancelled()
            request.left = True
            waiting = self._queue.remove(request)
            running = request in self._running
            if left := now < request.deadline - DEADLINE_MARGIN:
                self._queue.note_left(request.principal, now - request.submitted, now)
        if self._observer is not None:
            if waiting:
                self._observer.count_dropped("left" if left else "deadline")
            self._observer.count_left(waiting, len(request.items) - waiting - request.computed, request.computed)
        return running or Future.cancel(request)

    def close(self) -> None:
        """Lets nothing new in; what waits is still taken."""
        with self._changed:
            self.closing = True
            self._changed.notify()

    def end(self, error: OneBertError) -> None:
        """Ends every request that is not done with this error, and lets nothing more in."""
        with self._changed:
            self._serves = False
            left = {*self._queue.clear(), *self._running}
        for request in left:
            request.fail(error)

    def _check_open(self) -> None:
        if self.closing:
            raise ShuttingDown("the server is shutting down")
        if not self._serves:
            raise EngineFailed("the engine does not run")

    def _take(self, max_cost: int, max_tokens: int, beside: Collection[str] | None) -> list[Waiting]:
        with self._changed:
            now = time.monotonic()
            late = self._queue.expire(now)
            taken = self._queue.take(max_cost, max_tokens, now, beside)
            self._running |= {request for request, _ in taken}
        self._drop(late)
        return self._observed([Waiting(request.items[position], request, position) for request, position in taken])

    def _drop(self, late: Sequence[Request]) -> None:
        for request in late:
            error = DeadlineExceeded("the request's time was over before its work was done")
            # On a GPU a batch may be under way that reads its rows. No lock: what runs changes on this thread.
            if request in self._running:
                request.left, request.error = True, error
            else:
                request.fail(error)
            if self._observer is not None:
                self._observer.count_dropped("deadline")

    def _observed(self, waiting: list[Waiting]) -> list[Waiting]:
        now = time.monotonic()
        for entry in waiting:
            if entry.position == 0:
                entry.request.began = now
                if self._observer is not None:
                    self._observer.observe_wait(now - entry.request.submitted)
        return waiting
