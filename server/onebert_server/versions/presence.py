"""Reports this replica's position to the other replicas, and waits until all of them have come as far."""

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from contextlib import suppress
from dataclasses import dataclass

from onebert_server.access.context import Context
from onebert_server.versions.position import Waiter
from onebert_store.errors import DeadlineExceeded
from onebert_store.registry.replicas import BEAT_SECONDS, Replica, Replicas

# Seconds between two looks at the other replicas, first and after `SOON` seconds of waiting: a replica that is not
# there by then lags, and each look is a query.
LOOK_EVERY, LOOK_SELDOM, SOON = 0.02, 0.5, 1.0


@dataclass(eq=False)
class _Waiter(Waiter):
    """Waits until every other live replica shows the change, or until its deadline."""

    deadline: float
    since: float


class Presence:
    """This replica, by a random `id`, among the others; a registry that one process owns has no others."""

    def __init__(self, replicas: Replicas, clock: Callable[[], float] = time.monotonic) -> None:
        self.id = secrets.token_hex(8)
        self._replicas = replicas
        self._clock = clock
        self._reported: tuple[int, float] | None = None
        # Only the event loop reads and writes these.
        self._waiting: set[_Waiter] = set()
        self._looking: asyncio.Task[None] | None = None
        self._news = asyncio.Event()

    def report(self, seq: int) -> None:
        """Reports this replica's position if it is new or the last report is old; raises StorageUnavailable."""
        now = self._clock()
        if self._reported is None or self._reported[0] != seq or now - self._reported[1] >= BEAT_SECONDS:
            self._replicas.report(self.id, seq)
            self._reported = seq, now

    def leave(self) -> None:
        if self._reported is not None:
            self._replicas.leave(self.id)

    async def all_at(self, seq: int, context: Context, threads: Executor) -> None:
        """Waits until every other live replica shows a change; raises DeadlineExceeded if one does not in time."""
        loop = asyncio.get_running_loop()
        waiter = _Waiter(seq, loop.create_future(), context.deadline, time.monotonic())
        self._waiting.add(waiter)
        self._news.set()
        if self._looking is None or self._looking.done():
            self._looking = loop.create_task(self._look(threads))
        try:
            await waiter.shown
        finally:
            self._waiting.discard(waiter)

    async def _look(self, threads: Executor) -> None:
        """Looks once for all waiting requests: many of them must not fill the threads that others need."""
        while asked := list(self._waiting):
            try:
                live = await asyncio.get_running_loop().run_in_executor(threads, self._replicas.live)
            except Exception as error:
                for one in asked:
                    one.tell(error)
            else:
                for one in asked:
                    self._tell(one, live)
            self._news.clear()
            await asyncio.sleep(LOOK_EVERY)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._news.wait(), self._rest(time.monotonic()))

    def _rest(self, now: float) -> float:
        """Returns the seconds to rest: 0 if a request has not waited for long, or has no time left."""
        if any(now - one.since < SOON for one in self._waiting):
            return 0.0
        left = min((one.deadline - now for one in self._waiting), default=0.0)
        return min(LOOK_SELDOM, max(left - LOOK_EVERY, 0.0))

    def _tell(self, waiter: _Waiter, live: Sequence[Replica]) -> None:
        behind = sum(one.seq < waiter.seq for one in live if one.id != self.id)
        if not behind:
            waiter.tell()
        elif time.monotonic() + LOOK_EVERY >= waiter.deadline:
            detail = f"it is done, as change {waiter.seq}; {behind} of {len(live)} replicas do not show it yet"
            waiter.tell(DeadlineExceeded(detail))
