"""What the engine's thread has done, on its way to the event loop: all of a batch comes with one wake-up."""

import asyncio
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """Futures of another thread, awaited on one event loop.

    To wake a loop costs more than to hand a result over. So what ends while a wake-up is under way comes with that one:
    the engine's thread ends the futures of a batch one right after the other, before the loop has its turn.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: deque[tuple[Future[T], asyncio.Future[T]]] = deque()
        self._waking = False

    @property
    def current(self) -> bool:
        """Whether the event loop that runs is the one that this brings results to."""
        return self._loop is asyncio.get_running_loop()

    async def result(self, future: Future[T]) -> T:
        """What a future comes to; where the caller is cancelled, so is the future."""
        waiting: asyncio.Future[T] = self._loop.create_future()
        future.add_done_callback(partial(self._arrive, waiting))
        try:
            return await waiting
        except asyncio.CancelledError:
            future.cancel()
            raise

    def _arrive(self, waiting: asyncio.Future[T], future: Future[T]) -> None:
        """Called on the thread that ends the future."""
        self._ended.append((future, waiting))
        if not self._waking:
            self._waking = True
            # A loop that has ended has nobody left who waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        # First, so that what ends from now on wakes the loop again.
        self._waking = False
        while self._ended:
            future, waiting = self._ended.popleft()
            if waiting.done():
                continue
            if future.cancelled():
                waiting.cancel()
            elif error := future.exception():
                waiting.set_exception(error)
            else:
                waiting.set_result(future.result())
