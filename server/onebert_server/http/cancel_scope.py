"""Cancels the work on a response at its deadline, or when the client disconnects."""

import asyncio
import threading
import time
from types import TracebackType

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from onebert_server.access.context import Context
from onebert_store.errors import DeadlineExceeded

# Seconds until the first check for a disconnect. Most responses are faster and skip the check, which takes a task.
CHECK_AFTER = 0.1


class CancelScope:
    """Cancels the body of `with`, in a task, and raises `DeadlineExceeded` or `ClientDisconnect`.

    The request's body must have been read before, because this consumes `receive`.
    """

    _timer: asyncio.TimerHandle | None = None
    _watcher: asyncio.Task[None] | None = None
    _over: Exception | None = None

    def __init__(self, context: Context, receive: Receive) -> None:
        self._deadline = context.deadline
        self._receive = receive

    def __enter__(self) -> None:
        self._loop = loop = asyncio.get_running_loop()
        working = asyncio.current_task(loop)
        if working is None:
            raise RuntimeError("what can be given up is a task")
        self._working = working
        if (remaining := self._deadline - time.monotonic()) < CHECK_AFTER:
            self._timer = loop.call_later(remaining, self.look)
            return
        young = _young
        if young.loop is not loop:
            young.loop, young.scopes, young.checks = loop, {}, False
        now = loop.time()
        young.scopes[self] = now
        if not young.checks:
            young.checks = True
            loop.call_at(now + CHECK_AFTER, _check_old, young)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._timer is None:
            # Nothing outlives its request: the memory of one that ends soon is the next one's.
            _young.scopes.pop(self, None)
        else:
            self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        # If somebody else cancelled the task as well, let that CancelledError pass.
        if self._over is not None and not self._working.uncancel() and kind is asyncio.CancelledError:
            raise self._over from None

    def look(self) -> None:
        """Gives up at the deadline; otherwise starts to watch the client."""
        if (remaining := self._deadline - time.monotonic()) <= 0:
            late = DeadlineExceeded("the answer did not come in time; ask with a longer X-Request-Timeout")
            self._give_up(late)
            return
        # At least 1 ms, because timers can fire up to a millisecond early.
        self._timer = self._loop.call_later(max(remaining, 0.001), self.look)
        if self._watcher is None:
            self._watcher = self._loop.create_task(self._watch())

    async def _watch(self) -> None:
        while (await self._receive())["type"] != "http.disconnect":
            pass
        self._give_up(ClientDisconnect())

    def _give_up(self, over: Exception) -> None:
        if self._over is None:
            self._over = over
            self._working.cancel()


class _Young(threading.local):
    """The scopes of this thread's event loop that were never checked, with the times of their beginnings, in order."""

    def __init__(self) -> None:
        self.loop: asyncio.AbstractEventLoop | None = None
        self.scopes: dict[CancelScope, float] = {}
        # Whether a timer runs: one for all scopes, since most have ended by then.
        self.checks = False


_young = _Young()


def _check_old(young: _Young) -> None:
    loop = asyncio.get_running_loop()
    # Timers can fire up to a millisecond early.
    began, scopes = loop.time() - CHECK_AFTER + 0.001, young.scopes
    while scopes and scopes[scope := next(iter(scopes))] <= began:
        del scopes[scope]
        scope.look()
    young.checks = bool(scopes)
    if scopes:
        loop.call_at(next(iter(scopes.values())) + CHECK_AFTER, _check_old, young)
