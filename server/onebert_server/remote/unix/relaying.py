"""Relayed requests on a Unix socket, one connection each: the front end's end and the engine process's.

A body's part is sent when the app asks for it, so that the rest of the body waits in the client's socket, as it would
without a front end. A response's part waits until the front end has passed on those before it.
"""

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Message

from onebert_server.http.body import Body
from onebert_server.http.connection.refusals import REFUSAL
from onebert_server.remote import wire
from onebert_server.remote.relayed import Relayed
from onebert_server.remote.transport import NO_WORD, SILENT
from onebert_server.remote.unix import frames
from onebert_server.remote.unix.channel import connected, framed, read_frame
from onebert_store.errors import ShuttingDown

logger = logging.getLogger("onebert.relaying")

# Bytes read at a time, and seconds at most, when an unread body is discarded.
_UNREAD_BYTES, _UNREAD_SECONDS = 2**16, 60.0
_LEFT: Message = {"type": "http.disconnect"}

_reply = wire.decoder(frames.Wanted | wire.Relayed)
_request = wire.decoder(wire.Request | wire.Part)


async def relay(
    name: str, request: wire.Request, body: Body, heard: Callable[[], float]
) -> AsyncGenerator[wire.Relayed]:
    """See Transport; `heard` returns when the process was heard last, in seconds of `time.monotonic()`."""
    deadline = time.monotonic() + request.remaining
    try:
        reader, writer = await asyncio.open_unix_connection(sock=await connected(name))
    except OSError as error:
        logger.error("the process with the engine cannot be reached: %s", error.strerror)
        raise ShuttingDown(NO_WORD) from None
    client, begun, more = _Client(body, writer), False, True
    try:
        writer.write(framed(request))
        while more:
            try:
                reply = await _next(reader, lambda: max(deadline, heard() + SILENT))
            except TimeoutError:
                # After the response has begun, the server can only cut the connection.
                raise ConnectionError(NO_WORD) if begun else TimeoutError from None
            match reply:
                case None if client.left:
                    raise ClientDisconnect
                case None:
                    raise ConnectionError(NO_WORD) if begun else ShuttingDown(NO_WORD)
                case frames.Wanted():
                    client.pull()
                case wire.Part() as part:
                    more = part.more
                    yield part
                case wire.Matched() | wire.Response() as reply:
                    begun = begun or isinstance(reply, wire.Response)
                    yield reply
    finally:
        client.stop()
        writer.close()


async def _next(reader: asyncio.StreamReader, until: Callable[[], float]) -> Any:
    """Reads the next message; None if the peer is gone. Raises TimeoutError at a time that may move meanwhile."""
    reading = asyncio.create_task(read_frame(reader, _reply))
    try:
        while not reading.done():
            if (left := until() - time.monotonic()) <= 0:
                raise TimeoutError
            await asyncio.wait([reading], timeout=left)
        return reading.result()
    finally:
        reading.cancel()


class _Client:
    """The client of a relayed request; sends one part of its body each time the app asks for one."""

    def __init__(self, body: Body, writer: asyncio.StreamWriter) -> None:
        self.left = False
        self._body = body
        self._writer = writer
        self._pulled: asyncio.Task[None] | None = None

    def pull(self) -> None:
        self._pulled = asyncio.create_task(self._pull())

    def stop(self) -> None:
        if self._pulled is not None:
            self._pulled.cancel()

    async def _pull(self) -> None:
        message = await self._body.unlimited()
        self.left = message["type"] == "http.disconnect"
        if self._writer.is_closing():
            return
        if self.left:
            self._writer.write_eof()
            return
        part = wire.Part(message.get("body", b""), message.get("more_body", False), message.get(REFUSAL))
        self._writer.write(framed(part))


def relayed_to(relayed: Relayed) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Serves relayed requests in the engine process, one per connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        front_end = _FrontEnd(reader, writer)
        try:
            if request := await read_frame(reader, _request):
                await relayed.answer(request, front_end.receive, front_end.respond)
        finally:
            await front_end.close()

    return serve


class _FrontEnd:
    """The front end of a relayed request; one that is gone acts like a client that has left."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer
        self._whole, self._reading = True, asyncio.Lock()

    async def receive(self) -> Message:
        # A cancelled read may have consumed half a message, so the stream has lost its framing.
        if not self._whole or self._writer.is_closing():
            return _LEFT
        self._whole = False
        self._writer.write(framed(frames.Wanted()))
        async with self._reading:
            part = await read_frame(self._reader, _request)
        if part is None:
            return _LEFT
        self._whole = True
        return {"type": "http.request", "body": part.body, "more_body": part.more, REFUSAL: part.refusal}

    async def respond(self, reply: wire.Relayed) -> None:
        if not self._writer.is_closing():
            self._writer.write(framed(reply))
            with suppress(ConnectionError):
                await self._writer.drain()

    async def close(self) -> None:
        try:
            if not self._writer.is_closing():
                self._writer.write_eof()
            # The app may have cancelled its own read without awaiting it.
            async with self._reading:
                await _drop_unread(self._reader)
        finally:
            self._writer.close()


async def _drop_unread(reader: asyncio.StreamReader) -> None:
    """Reads and discards until the front end has closed its side.

    The kernel resets a connection that is closed with unread bytes, and the front end would lose the reply.
    """
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(_UNREAD_SECONDS):
            while await reader.read(_UNREAD_BYTES):
                pass
