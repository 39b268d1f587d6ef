"""Length-prefixed messages over the Unix sockets between front ends and the engine process."""

import asyncio
import socket
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import msgspec

from onebert_server.remote.wire import decoder, encode

_LENGTH_BYTES = 4
# A write buffer above this holds dozens of the largest requests, which only happens when the peer hangs.
MAX_UNREAD_BYTES = 2**23


class Channel(asyncio.Protocol):
    """Sends and receives frames over one connection.

    `received` gets each message in order. `full`: the write buffer exceeds `MAX_UNREAD_BYTES`; `send` still accepts.
    """

    def __init__(self, kind: Any, received: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self.full = False
        self._decode = decoder(kind)
        self._received = received
        self._lost = lost
        self._incoming = bytearray()
        self._outgoing: deque[bytes] = deque()
        self._flushing = False
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._transport: asyncio.WriteTransport | None = None

    def send(self, frame: msgspec.Struct, at_once: bool = True) -> None:
        """Queues a frame, from any thread; all frames queued before the next flush leave in one write.

        Unless it leaves `at_once`, it waits for the next frame that does: each write wakes the other process.
        """
        self._outgoing.append(framed(frame))
        if at_once and not self._flushing:
            self._flushing = True
            # Waking a loop costs a system call, which its own thread does not need.
            on_loop = threading.get_ident() == self._thread
            (self._loop.call_soon if on_loop else self._loop.call_soon_threadsafe)(self.flush)

    def close(self) -> None:
        """Closes the connection after what is queued."""
        if self._transport is not None:
            self._transport.close()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)

    def pause_writing(self) -> None:
        self.full = True

    def resume_writing(self) -> None:
        self.full = False

    def data_received(self, data: bytes) -> None:
        self._incoming += data
        start = 0
        while len(self._incoming) >= start + _LENGTH_BYTES:
            end = start + _LENGTH_BYTES
            end += int.from_bytes(self._incoming[start:end], "big")
            if len(self._incoming) < end:
                break
            self._received(self._decode(self._incoming[start + _LENGTH_BYTES : end]))
            start = end
        del self._incoming[:start]

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._lost()

    def flush(self) -> None:
        """Writes all queued frames; runs on the loop."""
        # Reset first, so that a frame appended during this flush schedules another one.
        self._flushing = False
        outgoing = []
        while self._outgoing:
            outgoing.append(self._outgoing.popleft())
        if outgoing and self._transport is not None:
            self._transport.write(b"".join(outgoing))


async def connected(name: str) -> socket.socket:
    """Connects to a Unix socket, which uvloop's own connections do not do without a path."""
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    try:
        await asyncio.get_running_loop().sock_connect(connection, name)
    except BaseException:
        connection.close()
        raise
    return connection


def framed(message: Any) -> bytes:
    """Encodes a message and prepends its length."""
    body = encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


async def read_frame(reader: asyncio.StreamReader, decode: Callable[[bytes], Any]) -> Any:
    """Reads one message from a stream; returns None if the peer has disconnected."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        return decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
