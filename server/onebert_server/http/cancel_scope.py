"""Cancels the work on a response at its deadline, or when the client disconnects."""

import asyncio
import time
from types import TracebackType

from starlette.requests import ClientDisconnect
from starlette.types import Receive

from onebert_server.access.context import Context
from onebert_store.errors import DeadlineExceeded

# Seconds until the first check for a disconnect. Most responses are faster and skip the check, which takes a task.
CHECK_AFTER = 0.1


class CancelScope:
    """Cancels the body of `async with` and raises `DeadlineExceeded` or `ClientDisconnect`.

    The request's body must have been read before, because this consumes `receive`.
    """

    def __init__(self, context: Context, receive: Receive) -> None:
        self._deadline = context.deadline
        self._receive = receive
        self._watcher: asyncio.Task[None] | None = None
        self._over: Exception | None = None

    async def __aenter__(self) -> None:
        self._loop = asyncio.get_running_loop()
        working = asyncio.current_task()
        if working is None:
            raise RuntimeError("what can be given up is a task")
        self._working = working
        self._timer = self._loop.call_later(min(CHECK_AFTER, self._remaining()), self._check)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._timer.cancel()
        if self._watcher is not None:
            self._watcher.cancel()
        # If somebody else cancelled the task as well, let that CancelledError pass.
        if self._over is not None and not self._working.uncancel() and kind is asyncio.CancelledError:
            raise self._over from None

    def _remaining(self) -> float:
        return self._deadline - time.monotonic()

    def _check(self) -> None:
        """Gives up at the deadline; otherwise starts to watch the client."""
        if (remaining := self._remaining()) <= 0:
            late = DeadlineExceeded("the answer did not come in time; ask with a longer X-Request-Timeout")
            self._give_up(late)
            return
        # At least 1 ms, because timers can fire up to a millisecond early.
        self._timer = self._loop.call_later(max(remaining, 0.001), self._check)
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
