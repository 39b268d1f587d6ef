"""The last change of the registry that this replica shows, and the requests that wait for a later one."""

import asyncio
import threading
from concurrent.futures import Future
from dataclasses import dataclass, field

from onebert_server.access.context import Context
from onebert_server.fairness.shares import Permits
from onebert_store.errors import ChangeUnknown, DeadlineExceeded

# Requests that may wait for changes, each with its body, while the registry does not answer; a principal may hold no
# more than is left for others.
MAX_WAITING = 1024


@dataclass(eq=False)
class _Waiter:
    """A request that waits until change `seq` is shown; `polls` had begun when it came."""

    seq: int
    polls: int
    shown: Future[None] = field(default_factory=Future)


class Position:
    """Thread-safe: one thread moves it, requests on event loops wait for it. `wanted` is set when one waits."""

    def __init__(self) -> None:
        self.seq = 0
        self.wanted = threading.Event()
        self._polls = 0
        self._lock = threading.Lock()
        self._waiting: set[_Waiter] = set()
        self._permits = Permits(MAX_WAITING, "as many requests wait for changes as the server holds; try again soon")

    def begin_poll(self) -> None:
        """Marks the start of a poll of the registry."""
        with self._lock:
            self._polls += 1

    def end_poll(self) -> None:
        """Marks the end of a poll: requests that waited before it for a change that is not there get ChangeUnknown."""
        with self._lock:
            waiting = [waiter for waiter in self._waiting if waiter.polls < self._polls and waiter.seq > self.seq]
            self._waiting.difference_update(waiting)
        for waiter in waiting:
            if waiter.shown.set_running_or_notify_cancel():
                detail = f"the registry's last change is {self.seq}; there is no change {waiter.seq}"
                waiter.shown.set_exception(ChangeUnknown(detail))

    def move(self, seq: int) -> None:
        with self._lock:
            self.seq = seq
            shown = [waiter for waiter in self._waiting if waiter.seq <= seq]
            self._waiting.difference_update(shown)
        for waiter in shown:
            if waiter.shown.set_running_or_notify_cancel():
                waiter.shown.set_result(None)

    async def reached(self, context: Context) -> None:
        """Waits until this replica shows the change that a request needs; raises ChangeUnknown or DeadlineExceeded."""
        if self.seq >= context.min_seq:
            return
        with self._permits.held(context.principal.name):
            await self._shown(context)

    async def _shown(self, context: Context) -> None:
        with self._lock:
            if self.seq >= context.min_seq:
                return
            waiter = _Waiter(context.min_seq, self._polls)
            self._waiting.add(waiter)
        self.wanted.set()
        try:
            await asyncio.wait_for(asyncio.wrap_future(waiter.shown), context.remaining)
        except TimeoutError:
            raise DeadlineExceeded(
                f"this replica shows change {self.seq}, and not yet change {context.min_seq} that the request asks for"
            ) from None
        finally:
            with self._lock:
                self._waiting.discard(waiter)
