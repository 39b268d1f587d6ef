"""Delivers the engine's results to the event loop: a whole batch with one wake-up."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError, Future
from contextlib import suppress
from functools import partial
from typing import Generic, TypeVar

T = TypeVar("T")


class Arrivals(Generic[T]):
    """Futures of another thread, awaited on one event loop.

    Waking a loop costs more than delivering a result, so results that arrive during a wake-up share it: the engine's
    thread ends the futures of a batch one right after the other, before the loop runs.
    """

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: deque[tuple[Future[T], asyncio.Future[T]]] = deque()
        self._waking = False

    @property
    def current(self) -> bool:
        return self._loop is asyncio.get_running_loop()

    async def results(self, futures: Sequence[tuple[Future[T], Callable[[], None]]]) -> list[T]:
        """Awaits futures of another thread; the first error, and a cancellation of the caller, cancel them.

        The other thread calls what comes with a future when that ends, even if nobody waits for it any more.
        """
        waiting: list[asyncio.Future[T]] = [self._loop.create_future() for _ in futures]
        for own, (future, ended) in zip(waiting, futures, strict=True):
            future.add_done_callback(partial(self._arrive, own, ended))
        try:
            # `gather` costs more than all else here, and most requests are of one base.
            return [await waiting[0]] if len(waiting) == 1 else await asyncio.gather(*waiting)
        except BaseException:
            for future, _ in futures:
                future.cancel()
            raise

    def _arrive(self, waiting: asyncio.Future[T], ended: Callable[[], None], future: Future[T]) -> None:
        """Runs on the thread that ends the future."""
        ended()
        self._ended.append((future, waiting))
        if not self._waking:
            self._waking = True
            # The loop may be closed: then nobody waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        # First, so that a future that ends from now on wakes the loop again.
        self._waking = False
        while self._ended:
            future, waiting = self._ended.popleft()
            if waiting.done():
                continue
            # Ask once: each question to a future takes its lock.
            try:
                result = future.result()
            except CancelledError:
                waiting.cancel()
            except Exception as error:
                waiting.set_exception(error)
            else:
                waiting.set_result(result)
