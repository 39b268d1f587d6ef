"""HTTP load from one thread: clients that wait for their answers (closed loop), or requests that are due (open loop).

A closed loop slows down with the server and so hides overload. In an open loop requests go out when they are due,
whether earlier ones have been answered or not, and latencies count from then, so that neither a slow server nor a late
sender shortens them. Imports nothing heavy, so that a process that only sends load starts at once and has no threads of
torch.
"""

import asyncio
import math
import random
import re
import time
from collections import deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar, cast
from urllib.parse import urlsplit

import uvloop

from onebert_bench.numbers import percentile

# Seconds to wait for the last answers.
_LAST_WAIT = {"closed": 10.0, "open": 60.0}
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)

# The status that stands for the lack of an answer.
BROKEN = -1

T = TypeVar("T")
Answered = Callable[[int, bool], object]
"""Takes the status of an answer, and whether it has a Retry-After header."""


@dataclass(frozen=True)
class Request:
    """A POST request with a JSON body."""

    path: str
    body: str
    more_headers: Mapping[str, str] = field(default_factory=dict)

    @property
    def headers(self) -> dict[str, str]:
        """All headers except those of the connection."""
        return {"Content-Type": "application/json", **self.more_headers}

    def encode(self, url: str) -> bytes:
        """The bytes of the request."""
        body = self.body.encode()
        headers = {"Host": urlsplit(url).netloc, "Content-Length": str(len(body)), **self.headers}
        lines = [f"POST {self.path} HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items())]
        return "\r\n".join([*lines, "", ""]).encode() + body


@dataclass(frozen=True)
class Load:
    """The measurements of closed-loop clients.

    Attributes:
        latencies_ms: latency of every request that was answered with status 200.
        refused: number of requests that were answered with another status; they count nowhere else.
        seconds: duration of the load.
        cpu_seconds: processor time that the clients took.
    """

    latencies_ms: list[float]
    refused: int
    seconds: float
    cpu_seconds: float

    @property
    def rate(self) -> float:
        """Answers per second."""
        return len(self.latencies_ms) / self.seconds

    def latency_ms(self, share: float) -> float:
        """The latency below which a share (0 to 1) of the answers lies; NaN if there are no answers."""
        return percentile(self.latencies_ms, share) if self.latencies_ms else math.nan

    def as_json(self) -> dict[str, float]:
        """The load as JSON values, for results files."""
        counts = {"answered": len(self.latencies_ms), "refused": self.refused, "seconds": self.seconds}
        return {**counts, "p50_ms": self.latency_ms(0.5), "p99_ms": self.latency_ms(0.99)}


@dataclass(frozen=True)
class Stream:
    """Requests of one kind.

    Attributes:
        requests: encoded requests, sent in turn; after the last comes the first again.
        rate: requests per second.
        begin, end: seconds from the start of the load.
        by_chance: requests are due at random, as from many independent clients (a Poisson process with this number of
            arrivals), and not at equal distances, which may always or never meet work that the server repeats.
    """

    requests: Sequence[bytes]
    rate: float
    begin: float
    end: float
    by_chance: bool = False

    @property
    def dues(self) -> list[float]:
        """When each request is due, in seconds from the start of the load."""
        count = int((self.end - self.begin) * self.rate)
        if self.by_chance:
            draw = random.Random(count)  # noqa: S311 - not a secret
            return sorted(draw.uniform(self.begin, self.end) for _ in range(count))
        return [self.begin + number / self.rate for number in range(count)]


@dataclass(frozen=True)
class Reply:
    """The outcome of one request.

    Attributes:
        due: when the request was due, in seconds from the start of the load.
        seconds: time from then until the answer.
        status: HTTP status; `BROKEN` if the connection broke.
        retry_after: whether the answer has a Retry-After header.
    """

    due: float
    seconds: float
    status: int
    retry_after: bool = False


def run_load(url: str, requests: Sequence[bytes], clients: int, seconds: float) -> Load:
    """Loads a server: each client sends its next request once the last is answered.

    Args:
        url: the server's address.
        requests: encoded requests, sent in turn; each client begins at another one.
        clients: number of clients.
        seconds: duration of the load.

    Raises:
        ConnectionError: the server closed a connection.
    """
    return _run(_Closed(requests, clients).run(url, seconds))


def run_open_load(url: str, streams: Mapping[str, Stream]) -> dict[str, list[Reply]]:
    """Sends all streams side by side from this thread; returns each one's replies in the order in which they came."""
    return _run(_Open(url, streams).run())


def _run(load: Coroutine[Any, Any, T]) -> T:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(load)


class _Closed:
    """The clients of a closed loop; an answer's callback sends the next request, which costs less than a task."""

    def __init__(self, requests: Sequence[bytes], clients: int) -> None:
        self._requests = requests
        self._clients = self._left = clients
        self._latencies: list[float] = []
        self._refused = 0
        self._until = math.inf

    async def run(self, url: str, seconds: float) -> Load:
        connections = [await _connected(url) for _ in range(self._clients)]
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        started, cpu = time.perf_counter(), time.process_time()
        self._until = started + seconds
        for number, connection in enumerate(connections):
            self._send(connection, number * 7)
        await asyncio.wait([self._ended], timeout=seconds)
        if self._ended.done():
            self._ended.result()
        load = Load(self._latencies, self._refused, time.perf_counter() - started, time.process_time() - cpu)
        # The next load shall find nothing of this one.
        await asyncio.wait([self._ended], timeout=_LAST_WAIT["closed"])
        for connection in connections:
            connection.close()
        return load

    def _send(self, connection: "_Connection", turn: int) -> None:
        sent = time.perf_counter()

        def answered(status: int, _: bool) -> None:
            now = time.perf_counter()
            if now >= self._until:
                self._left -= 1
                if not self._left and not self._ended.done():
                    self._ended.set_result(None)
            elif status == BROKEN:
                if not self._ended.done():
                    self._ended.set_exception(ConnectionError("the server closed a connection under load"))
            else:
                if status == 200:
                    self._latencies.append((now - sent) * 1e3)
                else:
                    self._refused += 1
                self._send(connection, turn + 1)

        connection.ask(self._requests[turn % len(self._requests)], answered)


class _Open:
    def __init__(self, url: str, streams: Mapping[str, Stream]) -> None:
        self._url = url
        self._streams = streams
        self._replies: dict[str, list[Reply]] = {name: [] for name in streams}
        self._started = 0.0
        self._pending: set[asyncio.Task[None]] = set()
        self._idle: deque[_Connection] = deque()

    async def run(self) -> dict[str, list[Reply]]:
        self._started = time.perf_counter()
        await asyncio.gather(*(self._send(name, stream) for name, stream in self._streams.items()))
        if self._pending:
            await asyncio.wait(self._pending, timeout=_LAST_WAIT["open"])
        for task in self._pending:
            task.cancel()
        for connection in self._idle:
            connection.close()
        return self._replies

    async def _send(self, name: str, stream: Stream) -> None:
        for number, due in enumerate(stream.dues):
            if (wait := self._started + due - time.perf_counter()) > 0:
                await asyncio.sleep(wait)
            request = stream.requests[number % len(stream.requests)]
            task = asyncio.create_task(self._ask(name, request, due))
            self._pending.add(task)
            task.add_done_callback(self._pending.discard)

    async def _ask(self, name: str, request: bytes, due: float) -> None:
        try:
            connection = await self._connection()
            answer: asyncio.Future[tuple[int, bool]] = asyncio.get_running_loop().create_future()
            connection.ask(request, lambda *reply: None if answer.done() else answer.set_result(reply))
            status, again = await answer
            if connection.open:
                self._idle.append(connection)
        except OSError:
            status, again = BROKEN, False
        self._replies[name].append(Reply(due, time.perf_counter() - self._started - due, status, again))

    async def _connection(self) -> "_Connection":
        """An idle connection, or a new one; idle ones that the server has closed are not used."""
        while self._idle:
            if (idle := self._idle.pop()).open:
                return idle
        return await _connected(self._url)


class _Connection(asyncio.Protocol):
    """A connection with at most one request at a time."""

    def __init__(self) -> None:
        self.open = False
        self._received = b""
        self._answered: Answered | None = None

    def ask(self, request: bytes, answered: "Answered") -> None:
        """Sends a request; `answered` is called once, with `BROKEN` if the connection ends before the answer."""
        self._received, self._answered = b"", answered
        if self.open:
            self._transport.write(request)
        else:
            self._answer(BROKEN, False)

    def close(self) -> None:
        if self.open:
            self.open, self._answered = False, None
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self.open = True

    def data_received(self, data: bytes) -> None:
        self._received += data
        head, end, body = self._received.partition(b"\r\n\r\n")
        length, status = _LENGTH.search(head), _STATUS.match(head)
        # Without a length the body comes in chunks, of which the last is empty.
        is_complete = len(body) >= int(length[1]) if length else body.endswith(b"0\r\n\r\n")
        if end and status and is_complete:
            self._answer(int(status[1]), b"\r\nretry-after:" in head.lower())

    def connection_lost(self, exc: Exception | None) -> None:
        self.open = False
        self._answer(BROKEN, False)

    def _answer(self, status: int, again: bool) -> None:
        answered, self._answered = self._answered, None
        if answered is not None:
            answered(status, again)


async def _connected(url: str) -> _Connection:
    address = urlsplit(url)
    loop = asyncio.get_running_loop()
    _, connection = await loop.create_connection(_Connection, address.hostname or "", address.port or 80)
    return connection
