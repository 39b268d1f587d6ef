"""Open-loop HTTP load: requests go out when they are due, whether earlier ones have been answered or not.

A closed loop slows down with the server and so hides overload. Here latencies count from the time at which a request
was due, so that neither a slow server nor a late sender shortens them. Imports nothing heavy, like load.py.
"""

import asyncio
import re
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

# Seconds to wait for answers after the last request was due.
_LAST_WAIT = 60.0

# Statuses that stand for the lack of an answer; see `Reply`.
LEFT, BROKEN = 0, -1


@dataclass(frozen=True)
class Stream:
    """Requests of one kind at a constant rate.

    Attributes:
        requests: encoded requests, sent in turn; after the last comes the first again.
        rate: requests per second.
        begin, end: seconds from the start of the load.
        patience: seconds after which a client closes its connection; None waits for the answer.
    """

    requests: Sequence[bytes]
    rate: float
    begin: float
    end: float
    patience: float | None = None


@dataclass(frozen=True)
class Reply:
    """The outcome of one request.

    Attributes:
        due: when the request was due, in seconds from the start of the load.
        seconds: time from then until the answer.
        status: HTTP status; `LEFT` if the client closed the connection first, `BROKEN` if the connection broke.
        retry_after: whether the answer has a Retry-After header.
    """

    due: float
    seconds: float
    status: int
    retry_after: bool = False


def run_open_load(url: str, streams: Mapping[str, Stream]) -> dict[str, list[Reply]]:
    """Sends all streams side by side from this thread.

    Returns:
        The replies of each stream, in the order in which they came.
    """
    return asyncio.run(_Load(url, streams).run())


class _Load:
    def __init__(self, url: str, streams: Mapping[str, Stream]) -> None:
        address = urlsplit(url)
        self._host, self._port = address.hostname or "", address.port or 80
        self._streams = streams
        self._replies: dict[str, list[Reply]] = {name: [] for name in streams}
        self._started = 0.0
        self._pending: set[asyncio.Task[None]] = set()
        self._idle: deque[_Connection] = deque()

    async def run(self) -> dict[str, list[Reply]]:
        self._started = time.perf_counter()
        await asyncio.gather(*(self._send(name, stream) for name, stream in self._streams.items()))
        if self._pending:
            await asyncio.wait(self._pending, timeout=_LAST_WAIT)
        for task in self._pending:
            task.cancel()
        for connection in self._idle:
            connection.close()
        return self._replies

    async def _send(self, name: str, stream: Stream) -> None:
        for number in range(int((stream.end - stream.begin) * stream.rate)):
            due = stream.begin + number / stream.rate
            if (wait := self._started + due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            request = stream.requests[number % len(stream.requests)]
            task = asyncio.create_task(self._ask(name, request, due, stream.patience))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)

    async def _ask(self, name: str, request: bytes, due: float, patience: float | None) -> None:
        connection = None
        try:
            async with asyncio.timeout(patience):
                connection = await self._connection()
                status, again = await connection.ask(request)
            if connection.open:
                self._idle.append(connection)
        except (TimeoutError, OSError) as error:
            if connection is not None:
                connection.close()
            status, again = LEFT if isinstance(error, TimeoutError) else BROKEN, False
        self._replies[name].append(Reply(due, time.perf_counter() - self._started - due, status, again))

    async def _connection(self) -> "_Connection":
        """An idle connection, or a new one; idle ones that the server has closed are not used."""
        while self._idle:
            if (idle := self._idle.pop()).open:
                return idle
        _, protocol = await asyncio.get_running_loop().create_connection(_Connection, self._host, self._port)
        return protocol


class _Connection(asyncio.Protocol):
    """A connection with at most one request at a time."""

    def __init__(self) -> None:
        self.open = False
        self._received = b""
        self._answer: asyncio.Future[tuple[int, bool]] | None = None

    async def ask(self, request: bytes) -> tuple[int, bool]:
        """Sends a request; returns the answer's status, and whether it has a Retry-After header.

        Raises:
            ConnectionError: the connection ended before the answer did.
        """
        if not self.open:
            raise ConnectionError
        self._received, self._answer = b"", asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def close(self) -> None:
        if self.open:
            self.open = False
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.open = True

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length = _LENGTH.search(head)
        status = _STATUS.match(head)
        if end and status and length and len(body) >= int(length[1]) and self._answer and not self._answer.done():
            self._answer.set_result((int(status[1]), b"\r\nretry-after:" in head.lower()))

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        if self._answer and not self._answer.done():
            self._answer.set_exception(ConnectionError())
