"""Connections between front ends and the engine's process, over Unix sockets: messages, each behind its length."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any, cast

import msgspec

from onebert_server.front_ends.wire import decoder, encode

_LENGTH_BYTES = 4
# Bytes that may wait for the other side to read them: some forty of the largest questions. More wait only where the
# other side hangs.
MAX_UNREAD_BYTES = 2**23


class Channel(asyncio.Protocol):
    """Frames both ways over one connection.

    Args:
        kind: what comes, a union of the messages of `wire`.
        received: called with each, in order.
        lost: called when the other side is gone.

    Attributes:
        full: whether more than `MAX_UNREAD_BYTES` wait for the other side; `send` takes frames all the same.
    """

    def __init__(self, kind: Any, received: Callable[[Any], None], lost: Callable[[], None]) -> None:
        self.full = False
        self._decode = decoder(kind)
        self._received = received
        self._lost = lost
        self._incoming = bytearray()
        self._outgoing: deque[bytes] = deque()
        self._flushing = False
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.WriteTransport | None = None

    def send(self, frame: msgspec.Struct) -> None:
        """Sends a frame, from any thread; what is sent in one turn of the loop, or meanwhile, goes out together."""
        self._outgoing.append(framed(frame))
        if not self._flushing:
            self._flushing = True
            self._loop.call_soon_threadsafe(self._flush)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """See asyncio.Protocol."""
        self._transport = cast(asyncio.WriteTransport, transport)
        self._transport.set_write_buffer_limits(high=MAX_UNREAD_BYTES)

    def pause_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        self.full = True

    def resume_writing(self) -> None:
        """See asyncio.BaseProtocol."""
        self.full = False

    def data_received(self, data: bytes) -> None:
        """See asyncio.Protocol."""
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
        """See asyncio.Protocol."""
        self._transport = None
        self._lost()

    def _flush(self) -> None:
        # First, so that what comes from now on is flushed again.
        self._flushing = False
        outgoing = []
        while self._outgoing:
            outgoing.append(self._outgoing.popleft())
        if self._transport is not None:
            self._transport.write(b"".join(outgoing))


def framed(message: Any) -> bytes:
    """A message as it goes over the wire."""
    body = encode(message)
    return len(body).to_bytes(_LENGTH_BYTES, "big") + body


async def read_message(reader: asyncio.StreamReader) -> Any:
    """One message; None where the other side has gone."""
    try:
        length = int.from_bytes(await reader.readexactly(_LENGTH_BYTES), "big")
        return msgspec.msgpack.decode(await reader.readexactly(length))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
