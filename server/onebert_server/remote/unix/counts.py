"""Sends what a front end counts to the engine process, which keeps it when the front end dies."""

import asyncio
from collections.abc import Sequence

from onebert_server.observed import Ended
from onebert_server.remote.unix import frames
from onebert_server.remote.unix.transport import UnixTransport

# Seconds by which changes of the in-progress count are delayed.
TELL_IN_PROGRESS = 0.1


class RemoteCounts:
    """Sends what a turn has finished, and the in-progress count every `TELL_IN_PROGRESS` seconds at most."""

    def __init__(self, transport: UnixTransport) -> None:
        self._transport = transport
        self._in_progress = 0
        self._timer: asyncio.TimerHandle | None = None
        self._lines: list[bytes] = []

    def request_began(self) -> None:
        self._in_progress += 1
        self._tell_later()

    def write(self, lines: Sequence[bytes]) -> None:
        """Keeps lines of the access log, which go with their requests."""
        self._lines += lines

    def requests_ended(self, ended: Sequence[Ended]) -> None:
        self._in_progress -= len(ended)
        self._tell_later()
        lines, self._lines = self._lines, []
        # While others are in progress, their next block or the count of these takes it along.
        self._transport.send(frames.Counted([*ended], lines), at_once=not self._in_progress)

    def _tell_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TELL_IN_PROGRESS, self._tell)

    def _tell(self) -> None:
        self._timer = None
        self._transport.send(frames.InProgress(self._in_progress))
