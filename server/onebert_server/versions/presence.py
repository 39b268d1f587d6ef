"""Reports this replica's position to the other replicas, and waits until all of them have come as far."""

import asyncio
import secrets
import time
from collections.abc import Callable
from concurrent.futures import Executor

from onebert_server.access.context import Context
from onebert_server.threads import shielded
from onebert_store.errors import DeadlineExceeded
from onebert_store.registry.replicas import BEAT_SECONDS, Replica, Replicas

# Seconds between two polls of the other replicas, first and after `SOON` seconds of waiting: a replica that is not
# there by then lags, and each poll is a query.
POLL_EVERY, POLL_SELDOM, SOON = 0.02, 0.5, 1.0


class Presence:
    """This replica, by a random `id`, among the others; a registry that one process owns has no others."""

    def __init__(self, replicas: Replicas, clock: Callable[[], float] = time.monotonic) -> None:
        self.id = secrets.token_hex(8)
        self._replicas = replicas
        self._clock = clock
        self._reported: tuple[int, float] | None = None
        # Only the event loop reads and writes it.
        self._polling: asyncio.Future[list[Replica]] | None = None

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
        since = time.monotonic()
        while True:
            live = await self._live(threads)
            behind = sum(replica.seq < seq for replica in live if replica.id != self.id)
            if not behind:
                return
            now = time.monotonic()
            if now + POLL_EVERY >= context.deadline:
                detail = f"it is done, as change {seq}; {behind} of {len(live)} replicas do not show it yet"
                raise DeadlineExceeded(detail)
            await asyncio.sleep(rest(now, since, context.deadline))

    async def _live(self, threads: Executor) -> list[Replica]:
        """Polls the others once for all requests that ask meanwhile: they share few threads with many others."""
        if self._polling is None or self._polling.done():
            self._polling = asyncio.get_running_loop().run_in_executor(threads, self._replicas.live)
        return await shielded(self._polling)


def rest(now: float, since: float, deadline: float) -> float:
    """Returns the seconds until the next poll of a request that has waited since then.

    All requests poll at the same times, and so share their polls; each polls once more before its time is over.
    """
    every = POLL_EVERY if now - since < SOON else POLL_SELDOM
    return min(every - now % every, deadline - POLL_EVERY - now)
