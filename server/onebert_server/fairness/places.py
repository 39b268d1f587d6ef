"""Places for which principals wait in turns, and work that runs in them part by part."""

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from onebert_server.fairness.round_robin import RoundRobin
from onebert_server.limits import parts_of
from onebert_server.threads import shielded

T = TypeVar("T")


class Places:
    """A fixed number of places; principals wait for them in turns. Use it from one event loop."""

    def __init__(self, count: int) -> None:
        self._free = count
        self._waiting: RoundRobin[asyncio.Future[None]] = RoundRobin()

    async def take(self, principal: str) -> None:
        """Waits for a place; the caller holds it until `give_back`."""
        if self._free:
            self._free -= 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.put(place, principal)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self.give_back()
            raise

    def give_back(self) -> None:
        place = self._waiting.take(lambda one: not one.done())
        if place is None:
            self._free += 1
        else:
            place.set_result(None)


class PartByPart:
    """Runs work in worker threads, in parts between which principals take turns; use it from one event loop.

    At most `at_once` parts run at the same time. A part costs at most `most`, unless it is one piece: pieces are never
    divided.
    """

    def __init__(self, workers: Executor, at_once: int, most: int) -> None:
        self._workers = workers
        self._places = Places(at_once)
        self._most = most

    async def run(self, principal: str, costs: Sequence[int], work: Callable[[slice], list[T]]) -> list[T]:
        """Returns the results of all pieces; after a cancellation only the running part still finishes."""
        results: list[T] = []
        for part in parts_of(costs, self._most):
            await self._places.take(principal)
            results += await shielded(self._in_place(work, slice(part.start, part.stop)))
        return results

    async def _in_place(self, work: Callable[[slice], list[T]], part: slice) -> list[T]:
        # The caller shields this: a thread keeps its place until it has ended, even after a cancellation.
        try:
            return await asyncio.wrap_future(self._workers.submit(work, part))
        finally:
            self._places.give_back()
