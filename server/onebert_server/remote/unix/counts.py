"""Sends what a front end counts to the engine process, which keeps it when the front end dies."""

import asyncio

from onebert_server.observed import Ended
from onebert_server.remote.unix import frames
from onebert_server.remote.unix.transport import UnixTransport

# Seconds by which changes of the in-progress count are delayed.
TELL_IN_PROGRESS = 0.1


class RemoteCounts:
    """Sends what a turn has finished at its end, and the in-progress count every `TELL_IN_PROGRESS` seconds at most."""

    def __init__(self, transport: UnixTransport) -> None:
        self._transport = transport
        self._in_progress = 0
        self._timer: asyncio.TimerHandle | None = None
        self._ended: list[Ended] = []
        self._lines: list[bytes] = []

    def request_began(self) -> None:
        self._in_progress += 1
        self._tell_later()

    def request_ended(self, ended: Ended) -> None:
        self._in_progress -= 1
        self._tell_later()
        if not self._ended:
            asyncio.get_running_loop().call_soon(self._tell_ended)
        self._ended.append(ended)

    def write(self, line: bytes) -> None:
        """Sends a line of the access log with its request, which has just ended."""
        self._lines.append(line)

    def _tell_ended(self) -> None:
        ended, lines = self._ended, self._lines
        self._ended, self._lines = [], []
        self._transport.send(frames.Counted(ended, lines))

    def _tell_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TELL_IN_PROGRESS, self._tell)

    def _tell(self) -> None:
        self._timer = None
        self._transport.send(frames.InProgress(self._in_progress))
