"""The waiting, running and ending requests: the state that the engine's thread shares with its callers' threads."""

import ctypes
import time
from collections.abc import Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.layout.upload import Array
from onebert_server.engine.block import Block
from onebert_server.engine.host import Host
from onebert_server.engine.passes import Taken
from onebert_server.engine.queue.backlog import QueueLimits
from onebert_server.engine.queue.beside import Beside
from onebert_server.engine.queue.fair_queue import Bounds, FairQueue
from onebert_server.engine.requests import Answered, Endings, Requests, deliver
from onebert_server.engine.rows import by_host, hold, waiting_rows
from onebert_server.engine.shadow_rows import SHADOW_PAUSE, ShadowRows
from onebert_server.telemetry.metrics import Metrics
from onebert_store.errors import DeadlineExceeded, EngineFailed, OneBertError, QueueFull, RowGone, ShuttingDown

# A request that is withdrawn so few seconds before its deadline counts as late, not as left: timers fire a little
# early.
DEADLINE_MARGIN = 0.05


class Scheduler:
    """Requests from submission to end. Any thread may call; only the engine's thread takes, settles and gives up.

    The sequences of a request count as uses of their rows until it has ended and no batch reads them: meanwhile no
    other version is written in their place. All state has one lock, the lock of the uses; edges are called without it.

    Attributes:
        queue: any thread may read its totals and `check` it; all else happens under the lock.
        beside: the room between the layers of the batch that was taken last; empty where batches overlap.
        asked: 1 if anybody waits who may run there, perhaps; a long batch then makes way (`take_beside`).
    """

    def __init__(self, hosts: Sequence[Host], limits: QueueLimits, metrics: Metrics, makes_way: bool) -> None:
        self.closing = False
        self.queue = FairQueue(limits, len(hosts))
        self.beside = Beside()
        self.asked = ctypes.c_int32(0)
        self._hosts, self._metrics, self._makes_way = hosts, metrics, makes_way
        self._requests = Requests()
        self._shadows = ShadowRows(hosts)
        self._serves = False
        self._lock = hosts[0].bank.bound.using
        # The engine's thread sleeps until the bell rings, which is rung only if it is idle.
        self._idle = False
        self._bell = SimpleQueue[None]()

    def open(self) -> None:
        self._serves = True

    def open_lane(self, answered: Answered) -> int:
        with self._lock:
            return self._requests.open_lane(answered)

    def check(self, principal: str) -> None:
        """See `Engine.check`. It takes no lock: only `put` decides."""
        if (closed := self._closed()) is not None:
            raise closed
        self.queue.check(principal)

    def put(self, lane: int, block: Block) -> Endings:
        """Queues the requests of a block and wakes the engine's thread; returns requests that have ended already."""
        with self._lock:
            if (closed := self._closed()) is None:
                held = hold(self._hosts, block)
                places = self._requests.add(lane, block, held)
                errors = self._queued(block, places, held)
                self._wake()
            else:
                places = self._requests.add(lane, block, np.zeros(len(block.sequences), np.bool_))
                errors = dict.fromkeys(range(len(places)), closed)
            answered = block.requests["sequences"] == 0
            answered[list(errors)] = False
            if not (errors or answered.any()):
                return []
            return [*self._end(places[answered]), *self._end(places[list(errors)], list(errors.values()))]

    def take(self, bounds: Bounds, only_full: bool) -> Taken | None:
        """Returns the next batch; blocks until there is one, and first drops late requests.

        No batch comes once the engine is closing and nothing waits. With `only_full` it does not block, and returns
        nothing unless more than the batch takes is waiting.
        """
        idle = time.monotonic()
        while True:
            if not only_full:
                # No batch runs: who comes now asks for no way between its layers, whatever there was.
                self.beside = Beside()
                self._wait(idle)
            with self._lock:
                if only_full and not self.queue.fills(bounds):
                    return None
                now = time.monotonic()
                late = self._late(now)
                rows = self.queue.take(bounds, now)
                self._run(self._beside(rows) if self._makes_way else Beside())
                if not (len(rows) or self.closing):
                    rows = self._shadows.take(bounds)
                taken = self._taken(rows, now)
            deliver(late)
            if taken is not None or (self.closing and not self.queue.sequences):
                return taken

    def take_beside(self, bounds: Bounds) -> Taken | None:
        """Returns short sequences of who may run between the layers of the running batch; never blocks.

        After none `asked` is 0 until such a principal asks again. Beside shadows it returns a batch like any other,
        which makes way itself until `go_on`.
        """
        with self._lock:
            now, alone = time.monotonic(), self.beside.empty
            late = self._late(now)
            rows = self.queue.take(bounds, now) if alone else self.queue.take_beside(self.beside, bounds, now)
            if not len(rows):
                self.asked.value = 0
            elif alone:
                self._run(self._beside(rows))
            taken = self._taken(rows, now)
        deliver(late)
        return taken

    def go_on(self, beside: Beside) -> None:
        """Goes on with a batch that made way, and may do so again."""
        with self._lock:
            self._run(beside)

    def settle(self, taken: Taken, logits: NDArray[np.float32], sizes: Array) -> None:
        """After a batch: answers the requests that have all of their logits."""
        endings: Endings = []
        with self._lock:
            if self._serves:
                answered = self._requests.settle(taken.rows, logits, sizes, time.monotonic())
                answered = answered[~self._requests.table["gone"][answered]]
                endings = [*self._end(answered), *self._stop(taken)]
        deliver(endings)

    def give_up(self, taken: Taken, lost: bool) -> None:
        """After a batch that failed: it is not computed. Its requests are `lost`, or nobody waits for them."""
        endings: Endings = []
        with self._lock:
            if self._serves:
                if lost:
                    self._lose(np.unique(taken.rows["request"]), EngineFailed("the forward pass failed"))
                endings = self._stop(taken)
        deliver(endings)

    def left(self, taken: Taken) -> bool:
        """Whether nobody waits for the request of a batch's first row any more."""
        return not self._serves or bool(self._requests.table["gone"][taken.rows["request"][0]])

    def traced(self, taken: Taken) -> list[Any]:
        """Returns the traced requests of a batch."""
        traced = self._requests.traced
        return [traced[place] for place in set(taken.rows["request"].tolist()) if place in traced]

    def withdraw(self, lane: int, numbers: Sequence[int] | None = None) -> None:
        """Withdraws requests that nobody waits for, or closes a lane with all of its requests.

        Well before the deadline this means that the client has left; the queue learns how long this principal's clients
        wait.
        """
        now = time.monotonic()
        with self._lock:
            places = self._requests.leave(lane, numbers)
            rows, waiting = self._requests.table[places], self._remove(places)
            left = ~rows["waits"] & (now < rows["deadline"] - DEADLINE_MARGIN)
            for place, submitted in zip(places[left].tolist(), rows["submitted"][left].tolist(), strict=True):
                self.queue.note_left(self._requests.principals[place], now - submitted, now)
            self._forget(places[rows["running"] == 0])
        self._count_withdrawn(rows, waiting, left)

    def close(self) -> None:
        """Lets nothing new in; waiting requests are still taken, but no shadows."""
        with self._lock:
            self.closing = True
            self._wake()

    def end(self, error: OneBertError) -> None:
        """Ends every unfinished request with this error, and lets nothing more in."""
        with self._lock:
            self._serves = False
            self.queue.clear()
            self._shadows.clear()
            requests = self._requests
            requests.lose(requests.all, error)
            failed = np.array(list(requests.errors), np.int64)
            endings = self._end(failed, list(requests.errors.values()))
            requests.errors.clear()
            self._forget(requests.all)
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
        while not (self.queue.sequences or self.closing):
            left = since + SHADOW_PAUSE - time.monotonic() if self._shadows.waiting else None
            if left is not None and left <= 0:
                return
            # Look once more: the bell did not ring for what came before this.
            self._idle = True
            if self.queue.sequences or self.closing or (left is None and self._shadows.waiting):
                continue
            with suppress(Empty):
                self._bell.get(timeout=left)

    def _queued(self, block: Block, places: Array, held: NDArray[np.bool_]) -> dict[int, OneBertError]:
        """Queues what a block asks for; returns the errors of the refused requests, by their indices."""
        requests, names, now = block.requests, [principal.name for principal in block.principals], time.monotonic()
        rows, counts, waits = waiting_rows(self._hosts, block, places), requests["sequences"], requests["waits"]
        wanted, errors = (counts > 0) & ~waits, dict[int, OneBertError]()
        if not held.all():
            gone = np.unique(np.repeat(np.arange(len(requests)), counts)[~held])
            wanted[gone] = False
            errors = {index: RowGone("the version has changed or is not in memory any more") for index in gone.tolist()}
        for index in (waits & (counts > 0)).nonzero()[0].tolist():
            if index not in errors and not self._shadows.put(rows[rows["request"] == places[index]]):
                errors[index] = QueueFull("as much work of shadows is waiting as the server holds")
        if wanted.all():
            errors = self.queue.put(requests, rows, names, now)
        elif wanted.any():
            refused = self.queue.put(requests[wanted], rows[np.repeat(wanted, counts)], names, now)
            indices = np.flatnonzero(wanted).tolist()
            errors |= {indices[place]: error for place, error in refused.items()}
        if not self.asked.value and (self.beside.empty or self.queue.may_run_beside(names, self.beside)):
            self.asked.value = 1
        return errors

    def _beside(self, rows: NDArray[Any]) -> Beside:
        return Beside(rows, self._hosts[int(rows["host"][0])].weight, self.queue.names) if len(rows) else Beside()

    def _run(self, beside: Beside) -> None:
        self.beside = beside
        self.asked.value = self.queue.others_wait(beside.served)

    def _taken(self, rows: NDArray[Any], now: float) -> Taken | None:
        """Notes that rows are in a batch now; returns it."""
        if not len(rows):
            return None
        table, places = self._requests.table, rows["request"]
        self._requests.run(rows)
        begun = places[(rows["position"] == 0) & ~table["waits"][places]]
        table["began"][begun] = now
        self._metrics.observe_waits((now - table["submitted"][begun]).tolist())
        return Taken(rows, self._requests.inputs(rows))

    def _late(self, now: float) -> Endings:
        """Drops the requests whose deadline has passed; a request that a batch reads ends after the batch."""
        late = self.queue.expire(now)
        if not len(late):
            return []
        self._metrics.count_dropped("deadline", len(late))
        self._lose(late, DeadlineExceeded("the request's time was over before its work was done"))
        return self._ended(late)

    def _lose(self, places: Array, error: OneBertError) -> None:
        """Has requests end with an error as soon as no batch reads their rows; nothing else of them is computed."""
        self._remove(places)
        self._requests.lose(places, error)

    def _stop(self, taken: Taken) -> Endings:
        """Notes that a batch reads its rows no longer, and ends the requests that only waited for this."""
        self._requests.run(taken.rows, -1)
        places = taken.rows["request"]
        gone = places[self._requests.table["gone"][places]]
        return self._ended(np.unique(gone)) if len(gone) else []

    def _ended(self, places: Array) -> Endings:
        """Takes requests that are gone; ends each one that no batch reads."""
        errors = self._requests.errors
        places = places[self._requests.table["running"][places] == 0]
        failed = [place for place in places.tolist() if place in errors]
        endings = self._end(np.array(failed, np.int64), [errors.pop(place) for place in failed])
        self._forget(np.setdiff1d(places, failed))
        return endings

    def _end(self, places: Array, errors: Sequence[OneBertError] = ()) -> Endings:
        """Ends requests with their logits, or each with its error."""
        if not len(places):
            return []
        endings = self._requests.ended(places, errors)
        self._forget(places)
        return endings

    def _forget(self, places: Array) -> None:
        """Gives back what requests hold that have ended."""
        for host, own in by_host(self._requests.table["host"][places]):
            self._hosts[host].bank.let_go(self._requests.slots(places[own]))
        self._requests.free(places)

    def _remove(self, places: Array) -> Array:
        """Removes what waits of requests; returns the number of sequences of each that waited in the queue."""
        self._shadows.remove(places)
        return self.queue.remove(places)

    def _count_withdrawn(self, rows: NDArray[Any], waiting: Array, left: Array) -> None:
        dropped = waiting > 0
        self._metrics.count_dropped("left", int((dropped & left).sum()))
        self._metrics.count_dropped("deadline", int((dropped & ~left).sum()))
        running, computed = rows["left"] - waiting, rows["sequences"] - rows["left"]
        self._metrics.count_left(int(waiting.sum()), int(running.sum()), int(computed.sum()))
