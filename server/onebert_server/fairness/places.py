"""Principals served round robin: what waits, places, and work that runs in them part by part."""

import asyncio
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from typing import Generic, TypeVar

from onebert_server.limits import parts_of
from onebert_server.threads import shielded

T = TypeVar("T")


class RoundRobin(Generic[T]):
    """Waiting things, which are hashable, by principal; a newcomer is behind everybody. Not thread-safe."""

    def __init__(self) -> None:
        # The next principal first; of each principal in the order of `put`.
        self._things = OrderedDict[str, OrderedDict[T, None]]()

    def __bool__(self) -> bool:
        return bool(self._things)

    def __iter__(self) -> Iterator[T]:
        return (thing for things in self._things.values() for thing in things)

    def put(self, thing: T, principal: str) -> None:
        """Queues a thing for a principal; once, if it waits."""
        self._things.setdefault(principal, OrderedDict())[thing] = None

    def take(self, wanted: Callable[[T], bool]) -> T | None:
        """Takes the next wanted thing; None if nothing waits. Drops unwanted ones, which are not served."""
        while self._things:
            principal, things = next(iter(self._things.items()))
            thing, _ = things.popitem(last=False)
            serves = wanted(thing)
            if not things:
                del self._things[principal]
            elif serves:
                self._things.move_to_end(principal)
            if serves:
                return thing
        return None


class Places:
    """A fixed number of places, given round robin. Use it from one event loop."""

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
        place = self._waiting.take(lambda place: not place.done())
        if place is None:
            self._free += 1
        else:
            place.set_result(None)


class PartByPart:
    """Runs work in worker threads, in parts between which principals alternate; use it from one event loop.

    At most `at_once` parts run at the same time. A part costs at most `most`, unless it is one piece: pieces are never
    divided. Work that costs at most `tiny` is done on the event loop.
    """

    def __init__(self, workers: Executor, at_once: int, most: int, tiny: int = 0) -> None:
        self._workers, self._places = workers, Places(at_once)
        self._most, self._tiny = most, tiny

    async def run(self, principal: str, costs: Sequence[int], work: Callable[[slice], list[T]]) -> list[T]:
        """Returns the results of all pieces; after a cancellation only the running part still finishes."""
        if sum(costs) <= self._tiny:
            return work(slice(0, None))
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
