"""The waiting, running and ending requests: the state that the engine's thread shares with its callers' threads."""

import ctypes
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from queue import Empty, SimpleQueue
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.layout.upload import Array
from onebert_server.engine.block import Block
from onebert_server.engine.host import Host
from onebert_server.engine.queue.backlog import INFINITY, QueueLimits
from onebert_server.engine.queue.beside import Beside
from onebert_server.engine.queue.fair_queue import Bounds, FairQueue
from onebert_server.engine.queue.waiting import Texts
from onebert_server.engine.requests import Answered, Endings, Requests, deliver
from onebert_server.engine.rows import hold, let_go, waiting_texts
from onebert_server.engine.shadow_rows import SHADOW_PAUSE, ShadowRows
from onebert_server.telemetry.metrics import Metrics
from onebert_store.errors import DeadlineExceeded, EngineFailed, OneBertError, QueueFull, RowGone, ShuttingDown

# A request that is withdrawn so few seconds before its deadline counts as late, not as left: timers fire a little
# early.
DEADLINE_MARGIN = 0.05


class Scheduler:
    """Requests from submission to end. Any thread may call; only the engine's thread takes, settles and gives up.

    A sequence counts as a use of its row until it is dropped or its batch is over: meanwhile no other version is
    written in its place. All state has one lock, the lock of the uses; edges are called without it.

    Attributes:
        queue: any thread may read its totals and `check` it; all else happens under the lock.
        beside: the room between the layers of the batch that was taken last; None if it does not make way for others.
        asked: 1 if anybody waits who may run there, perhaps; a long batch then makes way (`take_beside`).
    """

    def __init__(
        self, hosts: Sequence[Host], limits: QueueLimits, metrics: Metrics, makes_way: Callable[[int, float], bool]
    ) -> None:
        """`makes_way`: whether a batch of a host with so many computed tokens lets others run between its layers."""
        self.closing = False
        self.queue = FairQueue(limits, len(hosts))
        self.beside: Beside | None = None
        self.asked = ctypes.c_int32(0)
        self._hosts, self._metrics, self._makes_way = hosts, metrics, makes_way
        self._requests = Requests()
        self._shadows = ShadowRows(hosts)
        self._texts = 0
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
            now, closed = time.monotonic(), self._closed()
            names = [principal.name for principal in block.principals]
            places = self._requests.add(lane, block, names)
            if closed is None:
                errors = self._queued(block, names, places, now)
                self._wake()
            else:
                errors = dict.fromkeys(range(len(places)), closed)
            ended = block.requests["sequences"] == 0
            if not (errors or ended.any()):
                return []
            for index, error in errors.items():
                self._requests.lose(places[[index]], error)
            ended[list(errors)] = True
            return self._requests.end(np.sort(places[ended]), now)

    def take(self, bounds: Bounds, only_full: bool) -> Texts | None:
        """Returns the next batch; blocks until there is one, and first drops late requests.

        No batch comes once the engine is closing and nothing waits. With `only_full` it does not block, and returns
        nothing unless more than the batch takes is waiting.
        """
        idle = time.monotonic()
        while True:
            if not only_full:
                # No batch runs: who comes now asks for no way between its layers, whatever there was.
                self.beside = None
                self._wait(idle)
            with self._lock:
                if only_full and not self.queue.fills(bounds):
                    return None
                now = time.monotonic()
                late = self._late(now)
                taken = self.queue.take(bounds, now)
                shadows = not (len(taken.rows) or self.closing)
                if shadows:
                    taken = self._shadows.take(bounds)
                self._run(self._beside(taken, shadows))
                self._begin(taken, now)
            deliver(late)
            if len(taken.rows) or (self.closing and not self.queue.sequences):
                return taken if len(taken.rows) else None

    def take_beside(self, beside: Beside, bounds: Bounds) -> Texts | None:
        """Returns short sequences of who may run between the layers of the running batch; never blocks.

        `beside` is the room of that batch. After none `asked` is 0 until such a principal asks again. Beside shadows it
        returns a batch like any other, which makes way itself until `go_on`.
        """
        with self._lock:
            now = time.monotonic()
            late = self._late(now)
            taken = self.queue.take(bounds, now) if beside.empty else self.queue.take_beside(beside, bounds, now)
            if not len(taken.rows):
                self.asked.value = 0
            elif beside.empty:
                self._run(self._beside(taken))
            self._begin(taken, now)
        deliver(late)
        return taken if len(taken.rows) else None

    def go_on(self, beside: Beside) -> None:
        """Goes on with a batch that made way, and may do so again."""
        with self._lock:
            self._run(beside)

    def settle(self, taken: Texts, logits: NDArray[np.float32], sizes: Array) -> None:
        """After a batch: answers the requests that have all of their logits."""
        endings: Endings = []
        with self._lock:
            if self._serves:
                endings = self._requests.settle(taken.rows, logits, sizes, time.monotonic())
                let_go(self._hosts, taken.rows)
        deliver(endings)

    def give_up(self, taken: Texts, lost: bool) -> None:
        """After a batch that failed: it is not computed. Its requests are `lost`, or nobody waits for them."""
        endings: Endings = []
        with self._lock:
            if self._serves:
                places = np.unique(taken.rows["request"])
                if lost:
                    self._requests.lose(places, EngineFailed("the forward pass failed"))
                now, waiting = time.monotonic(), self._remove(places)
                endings = self._drop(np.concatenate([waiting, taken.rows]), now)
        deliver(endings)

    def left(self, taken: Texts) -> bool:
        """Whether nobody waits for the request of a batch's first row any more."""
        return not self._serves or bool(self._requests.state["gone"][taken.rows["request"][0]])

    def traced(self, taken: Texts) -> list[Any]:
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
            requests = self._requests
            places = requests.leave(lane, numbers)
            submitted, before = requests.table[places], requests.state["left"][places]
            left = ~submitted["waits"] & (now < submitted["deadline"] - DEADLINE_MARGIN)
            for place, since in zip(places[left].tolist(), submitted["submitted"][left].tolist(), strict=True):
                self.queue.note_left(requests.principals[place], now - since, now)
            rows = self._remove(places)
            waiting = np.bincount(rows["request"], ~requests.table["waits"][rows["request"]], len(requests.table))[
                places
            ]
            self._drop(rows, now)
        dropped = waiting > 0
        self._metrics.count_dropped("left", int((dropped & left).sum()))
        self._metrics.count_dropped("deadline", int((dropped & ~left).sum()))
        # A late request is not counted: its client is there, and gets a refusal.
        running, computed = before - waiting, submitted["sequences"] - before
        self._metrics.count_left(*(int(sequences[left].sum()) for sequences in (waiting, running, computed)))

    def close(self) -> None:
        """Lets nothing new in; waiting requests are still taken, but no shadows."""
        with self._lock:
            self.closing = True
            self._wake()

    def end(self, error: OneBertError) -> None:
        """Ends every unfinished request with this error, and lets nothing more in."""
        with self._lock:
            self._serves = False
            let_go(self._hosts, np.concatenate([self.queue.clear(), self._shadows.clear()]))
            places = self._requests.all
            self._requests.lose(places, error)
            endings = self._requests.end(places, time.monotonic())
        deliver(endings)

    def _closed(self) -> OneBertError | None:
        if self.closing:
            return ShuttingDown("the server is shutting down")
        return None if self._serves else EngineFailed("the engine does not run")

    def _wake(self) -> None:
        if self._idle:
            self._idle = False
            self._bell.put(None)

    def _wait(self, since: float) -> None:
        """Sleeps while nothing waits; it wakes for shadows when their pause is over."""
        backlog, shadows = self.queue.backlog, self._shadows
        while not (backlog.sequences or self.closing):
            left = since + SHADOW_PAUSE - time.monotonic() if shadows.waiting else None
            if left is not None and left <= 0:
                return
            # Look once more: the bell did not ring for what came before this.
            self._idle = True
            if backlog.sequences or self.closing or (left is None and shadows.waiting):
                continue
            with suppress(Empty):
                self._bell.get(timeout=left)

    def _queued(self, block: Block, names: Sequence[str], places: Array, now: float) -> dict[int, OneBertError]:
        """Queues the requests of a block; returns the errors of the refused ones, by their indices."""
        requests = block.requests
        counts, shadows = requests["sequences"], requests["waits"]
        texts = waiting_texts(self._hosts, block, places, self._texts)
        self._texts += len(texts.rows)
        held = hold(self._hosts, texts.rows, block.sequences["generation"], not shadows.all())
        queued, errors = (counts > 0) & ~shadows, dict[int, OneBertError]()
        if not held.all():
            gone = np.unique(np.arange(len(requests)).repeat(counts)[~held])
            queued[gone] = False
            errors = {index: RowGone("the version has changed or is not in memory any more") for index in gone.tolist()}
        for index in (shadows & (counts > 0)).nonzero()[0].tolist():
            if index not in errors and not self._shadows.put(texts.part(texts.rows["request"] == places[index])):
                errors[index] = QueueFull("as much work of shadows is waiting as the server holds")
        if queued.all():
            errors = self.queue.put(requests, texts, names, now)
        elif queued.any():
            refused = self.queue.put(requests[queued], texts.part(queued.repeat(counts)), names, now)
            indices = queued.nonzero()[0].tolist()
            errors |= {indices[place]: error for place, error in refused.items()}
        if errors:
            let_go(self._hosts, texts.rows[held & np.isin(texts.rows["request"], places[list(errors)])])
        beside = self.beside
        if beside is not None and not self.asked.value:
            self.asked.value = beside.empty or self.queue.may_run_beside(names, beside)
        return errors

    def _beside(self, taken: Texts, shadows: bool = False) -> Beside | None:
        """Returns the room between the layers of a batch; None if it does not make way. Shadows do if they can."""
        rows = taken.rows
        if not (len(rows) and self._makes_way(taken.host, INFINITY if shadows else float(rows["cost"].sum()))):
            return None
        return Beside() if shadows else Beside(rows, self._hosts[taken.host].weight, self.queue.names)

    def _run(self, beside: Beside | None) -> None:
        self.beside = beside
        self.asked.value = beside is not None and self.queue.others_wait(beside.served)

    def _begin(self, taken: Texts, now: float) -> None:
        if len(taken.rows):
            self._metrics.observe_waits(self._requests.begin(taken.rows, now).tolist())

    def _late(self, now: float) -> Endings:
        """Drops the requests whose deadline has passed; a request that a batch reads ends after the batch."""
        rows = self.queue.expire(now)
        if not len(rows):
            return []
        places = np.unique(rows["request"])
        self._metrics.count_dropped("deadline", len(places))
        self._requests.lose(places, DeadlineExceeded("the request's time was over before its work was done"))
        return self._drop(rows, now)

    def _drop(self, rows: NDArray[Any], now: float) -> Endings:
        """Gives up what is neither waiting nor running any more."""
        let_go(self._hosts, rows)
        return self._requests.drop(rows, now)

    def _remove(self, places: Array) -> NDArray[Any]:
        return np.concatenate([self.queue.remove(places), self._shadows.remove(places)])
