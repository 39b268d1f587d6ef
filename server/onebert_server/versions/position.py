"""The last change of the registry that this replica shows, and the requests that wait for a later one."""

import asyncio
import threading
import time
from contextlib import suppress
from dataclasses import dataclass
from math import isinf

from onebert_server.access.context import Context
from onebert_server.fairness.shares import Permits
from onebert_store.errors import ChangeUnknown, DeadlineExceeded

# Requests that may wait for changes, each with its body, while the registry does not answer; a principal may hold no
# more than is left for others.
MAX_WAITING = 1024


@dataclass(eq=False)
class Waiter:
    """A request on an event loop that waits until change `seq` is shown; only that loop may end `shown`."""

    seq: int
    shown: asyncio.Future[None]

    def tell(self, error: Exception | None = None) -> None:
        """Ends the wait, with an error if given; only on the future's event loop. Does nothing if it has ended."""
        if self.shown.done():
            return
        if error is None:
            self.shown.set_result(None)
        else:
            self.shown.set_exception(error)


@dataclass(eq=False)
class _Waiter(Waiter):
    """Waits until this replica shows the change; `looks` had begun when it came."""

    looks: int
    loop: asyncio.AbstractEventLoop


class Position:
    """Thread-safe: one thread moves it, requests on event loops wait for it. `wanted` is set when one waits."""

    def __init__(self) -> None:
        self.seq = 0
        self.wanted = threading.Event()
        self._looks = 0
        self._lock = threading.Lock()
        self._waiting: set[_Waiter] = set()
        self._permits = Permits(MAX_WAITING, "as many requests wait for changes as the server holds; try again soon")

    def begin_look(self) -> None:
        """Marks the start of a look at the registry."""
        with self._lock:
            self._looks += 1

    def end_look(self) -> None:
        """Marks the end of a look: requests that waited before it for a change that is not there get ChangeUnknown."""
        with self._lock:
            waiting = [one for one in self._waiting if one.looks < self._looks and one.seq > self.seq]
        for one in waiting:
            _tell(one, ChangeUnknown(f"the registry's last change is {self.seq}; there is no change {one.seq}"))

    def move(self, seq: int) -> None:
        self.seq = seq
        with self._lock:
            shown = [one for one in self._waiting if one.seq <= seq]
        for one in shown:
            _tell(one)

    async def seen(self, context: Context) -> None:
        """Waits until this replica shows the change that a request needs; raises ChangeUnknown or DeadlineExceeded."""
        if self.seq >= context.min_seq:
            return
        with self._permits.held(context.principal.name):
            await self._shown(context)

    async def _shown(self, context: Context) -> None:
        loop = asyncio.get_running_loop()
        with self._lock:
            waiter = _Waiter(context.min_seq, loop.create_future(), self._looks, loop)
            self._waiting.add(waiter)
        self.wanted.set()
        # The change may have been shown before the waiter was added.
        if self.seq >= context.min_seq:
            waiter.tell()
        try:
            left = None if isinf(context.deadline) else context.deadline - time.monotonic()
            await asyncio.wait_for(waiter.shown, left)
        except TimeoutError:
            raise DeadlineExceeded(
                f"this replica shows change {self.seq}, and not yet change {context.min_seq} that the request asks for"
            ) from None
        finally:
            with self._lock:
                self._waiting.discard(waiter)


def _tell(waiter: _Waiter, error: Exception | None = None) -> None:
    # The request's loop may be closed: then nobody waits.
    with suppress(RuntimeError):
        waiter.loop.call_soon_threadsafe(waiter.tell, error)
