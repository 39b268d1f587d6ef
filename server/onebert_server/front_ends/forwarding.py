"""Forwards requests that a front end does not answer to the engine process, as ASGI messages.

Each request has its own connection. A body chunk is sent when the app asks for it, so that the rest of the body waits
in the client's socket, as it would without a front end.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onebert_server.fairness.shares import Permits
from onebert_server.front_ends.channel import framed, read_message
from onebert_server.http.auth import OPEN_PATHS, PROBES, ApiKeys
from onebert_server.http.connection.refusals import REFUSAL
from onebert_server.http.formats import Formats
from onebert_server.http.pipeline import REFUSED
from onebert_store.errors import OneBertError, ShuttingDown, Unhealthy

logger = logging.getLogger("onebert.forwarding")

# Seconds in which the app must answer a health request.
HEALTH_PATIENCE = 2.0
HEALTH_PATHS = PROBES

# The engine process sends a keep-alive at this interval in seconds while the app works, and at least `_ALIVE_TIMES`
# times within the front end's patience.
ALIVE_EVERY = 10.0
_ALIVE_TIMES = 4

# Bytes read at a time when an unread body is discarded.
_UNREAD_BYTES = 2**16

# Concurrent forwarded requests; each takes a descriptor in both processes. More than the concurrent uploads, so that
# the engine process decides about those. Health and documentation need no key and have separate limits of the same
# size, so that slow uploads, health probes and slow anonymous readers cannot block one another. One principal or
# address gets at most half of a limit: `Permits` leaves as much free as it gives to one.
MAX_FORWARDED = 256

_SILENT = "the process with the engine does not answer"
_WANTED = "onebert.wanted"
_ALIVE = "onebert.alive"
SCOPE = (
    *("type", "asgi", "http_version", "server", "client", "scheme"),
    *("method", "root_path", "path", "raw_path", "query_string", "headers"),
)


class Forwarding:
    """An app that answers its own questions and forwards every other request to the app behind a Unix socket.

    Args:
        app: answers the process's own questions, and refuses requests with an error in their state.
        patience: seconds of silence after which the other process counts as hung. Keep-alives reset it, so a slow app
            does not expire, and waiting for the client does not count. Health requests use `HEALTH_PATIENCE` at most.
    """

    def __init__(self, app: ASGIApp, own: Formats, path: str, keys: ApiKeys, patience: float = 60.0) -> None:
        self._patience = patience
        self._app = app
        self._own = own
        self._path = path
        self._keys = keys
        self._keyed, self._health, self._documentation = _room(), _room(), _room()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        # `app` authenticates its own questions, so skip the key check here: verifying a token's signature is slow.
        if REFUSAL in scope["state"] or self._own.asked(scope):
            await self._app(scope, receive, send)
            return
        room, patience = self._room_of(scope["path"])
        try:
            await self._keys.admit(scope)
            with room.held(scope["state"]["principal"].name):
                await self._forward(scope, receive, send, patience)
        except OneBertError as error:
            scope["state"][REFUSED] = error
            await self._app(scope, receive, send)

    def _room_of(self, path: str) -> tuple[Permits, float]:
        if path in HEALTH_PATHS:
            return self._health, min(self._patience, HEALTH_PATIENCE)
        return (self._documentation if path in OPEN_PATHS else self._keyed), self._patience

    async def _forward(self, scope: Scope, receive: Receive, send: Send, patience: float) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
        except OSError as error:
            logger.error("the process with the engine cannot be reached: %s", error.strerror)
            raise ShuttingDown(_SILENT) from None
        client = _Client(receive, writer)
        try:
            writer.write(framed({name: scope[name] for name in SCOPE}))
            begun, more = False, True
            while more:
                message = await _message(reader, client, patience)
                if message is None and client.left:
                    return
                if message is None:
                    # After the response has begun, the server can only cut the connection.
                    if begun:
                        raise ConnectionError("the engine's process gave up a request")
                    gone = reader.at_eof() or reader.exception()
                    raise (ShuttingDown if gone else Unhealthy)(_SILENT)
                if message["type"] == _WANTED:
                    client.pull()
                    continue
                if message["type"] == _ALIVE:
                    continue
                begun = True
                await send(message)
                more = message["type"] == "http.response.start" or message.get("more_body", False)
        finally:
            client.stop()
            writer.close()


def _room() -> Permits:
    return Permits(MAX_FORWARDED, "as many requests wait for the process with the engine as a front end forwards")


class _Client:
    """The client of a forwarded request; sends one body chunk each time the app asks for one."""

    def __init__(self, receive: Receive, writer: asyncio.StreamWriter) -> None:
        self.left = False
        self._receive = receive
        self._writer = writer
        self._pulled: asyncio.Task[None] | None = None

    def pull(self) -> None:
        self._pulled = asyncio.create_task(self._pull())

    @property
    def awaited(self) -> bool:
        return self._pulled is not None and not self._pulled.done()

    def stop(self) -> None:
        if self._pulled is not None:
            self._pulled.cancel()

    async def _pull(self) -> None:
        message = await self._receive()
        self.left = message["type"] == "http.disconnect"
        self._writer.write(framed(message))


async def _message(reader: asyncio.StreamReader, client: _Client, patience: float) -> Any:
    """Reads the next message of the engine process; returns None if it is gone or hangs."""
    reading = asyncio.create_task(read_message(reader))
    try:
        while not reading.done():
            done, _ = await asyncio.wait([reading], timeout=patience)
            if not (done or client.awaited):
                logger.error("the process with the engine says nothing for %.0f seconds", patience)
                return None
        return reading.result()
    finally:
        reading.cancel()


def forwarded_to(
    app: ASGIApp, patience: float = 60.0
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """Serves forwarded requests in the engine process, one per connection.

    The app may take longer than `patience` seconds, but must not block the event loop that long.
    """
    alive_every = min(ALIVE_EVERY, patience / _ALIVE_TIMES)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        whole, reading = True, asyncio.Lock()

        async def receive() -> Message:
            nonlocal whole
            # A cancelled read may have consumed half a message, so the stream has lost its framing.
            if not whole:
                return {"type": "http.disconnect"}
            whole = False
            writer.write(framed({"type": _WANTED}))
            async with reading:
                message = await read_message(reader)
            whole = True
            return message or {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            # A front end that is gone acts like a client that has left: the app sees it at its next `receive`.
            if not writer.is_closing():
                writer.write(framed(message))
                with suppress(ConnectionError):
                    await writer.drain()

        async def say_alive() -> None:
            while True:
                await asyncio.sleep(alive_every)
                writer.write(framed({"type": _ALIVE}))

        alive = asyncio.create_task(say_alive())
        try:
            # The app has logged its exception; closing the connection is the only thing left to do.
            with suppress(Exception):
                if scope := await read_message(reader):
                    await app(scope, receive, send)
        finally:
            alive.cancel()
            try:
                if not writer.is_closing():
                    writer.write_eof()
                # The app may have cancelled its own read without awaiting it.
                async with reading:
                    await _drop_unread(reader, patience)
            finally:
                writer.close()

    return serve


async def _drop_unread(reader: asyncio.StreamReader, patience: float) -> None:
    """Reads and discards until the front end has closed its side.

    The kernel resets a connection that is closed with unread bytes, and the front end would lose the reply.
    """
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(patience):
            while await reader.read(_UNREAD_BYTES):
                pass
