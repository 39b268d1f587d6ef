"""Relayed requests on a Unix socket, one connection each: the front end's end and the engine process's.

A body's part is sent when the app asks for it, so that the rest of the body waits in the client's socket, as it would
without a front end. A response's part waits until the front end has passed on those before it.
"""

import asyncio
import logging
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import Message

from onebert_server.http.body import Body
from onebert_server.http.connection.refusals import REFUSAL
from onebert_server.remote import wire
from onebert_server.remote.relayed import Relayed
from onebert_server.remote.transport import PATIENCE
from onebert_server.remote.unix import frames
from onebert_server.remote.unix.channel import framed, read_frame
from onebert_store.errors import ShuttingDown, Unhealthy

logger = logging.getLogger("onebert.relaying")

# Keep-alives of the engine process: at least every so many seconds, and so many within a front end's patience.
ALIVE_EVERY, ALIVE_TIMES = 10.0, 4
# Bytes read at a time when an unread body is discarded.
_UNREAD_BYTES = 2**16
_SILENT = "the process with the engine does not answer"
_LEFT: Message = {"type": "http.disconnect"}

_reply = wire.decoder(frames.Wanted | frames.Alive | wire.Relayed)
_request = wire.decoder(wire.Request | wire.Part)


async def relay(path: str, request: wire.Request, body: Body, patience: float) -> AsyncGenerator[wire.Relayed]:
    """See Transport. Keep-alives reset the patience: only a process that hangs loses it, and no slow app."""
    try:
        reader, writer = await asyncio.open_unix_connection(path)
    except OSError as error:
        logger.error("the process with the engine cannot be reached: %s", error.strerror)
        raise ShuttingDown(_SILENT) from None
    client, begun, more = _Client(body, writer), False, True
    try:
        writer.write(framed(request))
        while more:
            match await _next(reader, client, patience, begun):
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


async def _next(reader: asyncio.StreamReader, client: "_Client", patience: float, begun: bool) -> Any:
    """Reads the next message; raises the errors of `relay`."""
    reading = asyncio.create_task(read_frame(reader, _reply))
    try:
        while not reading.done():
            done, _ = await asyncio.wait([reading, *client.pulling], timeout=patience, return_when="FIRST_COMPLETED")
            # Waiting for a client's body costs no patience.
            if not (done or client.sends):
                logger.error("the process with the engine says nothing for %.0f seconds", patience)
                raise ConnectionError(_SILENT) if begun else Unhealthy(_SILENT)
        if (frame := reading.result()) is not None:
            return frame
    finally:
        reading.cancel()
    if client.left:
        raise ClientDisconnect
    # After the response has begun, the server can only cut the connection.
    raise ConnectionError(_SILENT) if begun else ShuttingDown(_SILENT)


class _Client:
    """The client of a relayed request; sends one part of its body each time the app asks for one."""

    def __init__(self, body: Body, writer: asyncio.StreamWriter) -> None:
        self.left = False
        self._complete = False
        self._body = body
        self._writer = writer
        self._pulled: asyncio.Task[None] | None = None

    def pull(self) -> None:
        self._pulled = asyncio.create_task(self._pull())

    @property
    def pulling(self) -> list[asyncio.Task[None]]:
        return [] if self._pulled is None or self._pulled.done() else [self._pulled]

    @property
    def sends(self) -> bool:
        """Whether the app waits for a part of the body; behind its end it may wait until the client leaves."""
        return bool(self.pulling) and not self._complete

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
        self._complete = not message.get("more_body", False)
        self._writer.write(framed(wire.Part(message.get("body", b""), not self._complete, message.get(REFUSAL))))


def relayed_to(
    relayed: Relayed, patience: float = PATIENCE
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Serves relayed requests in the engine process, one per connection.

    The app may take longer than `patience` seconds, but must not block the event loop that long.
    """

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        front_end = _FrontEnd(reader, writer)
        alive = asyncio.create_task(front_end.say_alive(min(ALIVE_EVERY, patience / ALIVE_TIMES)))
        try:
            if request := await read_frame(reader, _request):
                await relayed.answer(request, front_end.receive, front_end.respond)
        finally:
            alive.cancel()
            await front_end.close(patience)

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

    async def say_alive(self, every: float) -> None:
        await asyncio.sleep(every)
        while not self._writer.is_closing():
            self._writer.write(framed(frames.Alive()))
            await asyncio.sleep(every)

    async def close(self, patience: float) -> None:
        try:
            if not self._writer.is_closing():
                self._writer.write_eof()
            # The app may have cancelled its own read without awaiting it.
            async with self._reading:
                await _drop_unread(self._reader, patience)
        finally:
            self._writer.close()


async def _drop_unread(reader: asyncio.StreamReader, patience: float) -> None:
    """Reads and discards until the front end has closed its side.

    The kernel resets a connection that is closed with unread bytes, and the front end would lose the reply.
    """
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(patience):
            while await reader.read(_UNREAD_BYTES):
                pass
