"""Closed-loop HTTP load from one thread over plain sockets, so that it takes little of the machine it measures.

Imports nothing heavy, so that a process that only sends load starts at once and has no threads of torch.
"""

import math
import re
import selectors
import socket
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

from onebert_bench.ranks import percentile

# Seconds for which the last answer of each client is waited for.
_LAST_WAIT = 10.0

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


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
        return {
            "answered": len(self.latencies_ms),
            "refused": self.refused,
            "seconds": self.seconds,
            "p50_ms": self.latency_ms(0.5),
            "p99_ms": self.latency_ms(0.99),
        }


@dataclass
class _Client:
    """One connection; `turn` is the index of its next request."""

    connection: socket.socket
    turn: int
    sent: float = 0.0
    received: bytes = b""

    def send(self, requests: Sequence[bytes]) -> None:
        self.received, self.sent = b"", time.perf_counter()
        self.connection.sendall(requests[self.turn % len(requests)])
        self.turn += 1


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
    address = urlsplit(url)
    latencies: list[float] = []
    refused = 0
    with selectors.DefaultSelector() as selector:
        for number in range(clients):
            connection = socket.create_connection((address.hostname, address.port))
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            selector.register(connection, selectors.EVENT_READ, _Client(connection, number * 7))
        everyone: list[_Client] = [key.data for key in selector.get_map().values()]
        started, cpu = time.perf_counter(), time.process_time()
        for client in everyone:
            client.send(requests)
        while time.perf_counter() < started + seconds:
            for key, _ in selector.select(1.0):
                client = key.data
                client.received += _receive(client.connection)
                if not _complete(client.received):
                    continue
                if client.received.startswith(b"HTTP/1.1 200 "):
                    latencies.append((time.perf_counter() - client.sent) * 1e3)
                else:
                    refused += 1
                client.send(requests)
        load = Load(latencies, refused, time.perf_counter() - started, time.process_time() - cpu)
        # A server takes it for impatience where clients leave before they are answered, and lets less of theirs wait.
        for client in everyone:
            client.connection.settimeout(_LAST_WAIT)
            with suppress(OSError):
                while not _complete(client.received):
                    client.received += _receive(client.connection)
        for client in everyone:
            client.connection.close()
    return load


def _receive(connection: socket.socket) -> bytes:
    data = connection.recv(65536)
    if not data:
        raise ConnectionError("the server closed a connection under load")
    return data


def _complete(received: bytes) -> bool:
    """Whether an answer is complete, by its Content-Length or the empty chunk at its end."""
    head, end, body = received.partition(b"\r\n\r\n")
    length = _LENGTH.search(head)
    if length is None:
        return bool(end) and body.endswith(b"0\r\n\r\n")
    return bool(end) and len(body) >= int(length[1])
