"""The timer of a connection: each request moves its due time, and a timer that fires early starts again."""

import asyncio
from collections.abc import Callable


class Timer:
    """Calls `up` once the due time is over; to set and to stop it costs no call of the event loop.

    `due` is in seconds of the loop's clock; 0, set by anybody, while nothing is waited for.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop, up: Callable[[], None]) -> None:
        self.due = 0.0
        self._loop = loop
        self._up = up
        self._since = 0.0
        self._handle: asyncio.TimerHandle | None = None

    def start(self, seconds: float) -> None:
        self._since = self._loop.time()
        self.due = self._since + seconds
        if self._handle is None or self._handle.when() > self.due:
            self._set()

    def extend(self, seconds: float) -> None:
        """Moves the due time to so many seconds after the start, which must be later."""
        self.due = self._since + seconds

    def cancel(self) -> None:
        """Stops for good."""
        self.due = 0.0
        if self._handle is not None:
            self._handle.cancel()

    def _set(self) -> None:
        if self._handle is not None:
            self._handle.cancel()
        self._handle = self._loop.call_at(self.due, self._fire)

    def _fire(self) -> None:
        self._handle = None
        if not self.due:
            return
        if self._loop.time() < self.due:
            self._set()
        else:
            self._up()
