"""Requests that a front end does not answer itself: their ASGI messages go to the engine's process and back.

Each request has a connection of its own. A part of a body is sent when the app asks for it, so that a body waits where
it would without a front end: in the client's socket.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onebert_server.front_ends.channel import framed, read_message
from onebert_server.http.auth import OPEN_PATHS, PROBES, ApiKeys
from onebert_server.http.lean.formats import Formats
from onebert_server.http.problems import problem_response
from onebert_server.http.refusals import REFUSAL
from onebert_server.permits import Permits
from onebert_store.errors import OneBertError, ShuttingDown, Unhealthy

logger = logging.getLogger("onebert.forwarding")

# Seconds within which the app has to answer a request for its health.
HEALTH_PATIENCE = 2.0
HEALTH_PATHS = PROBES

# While the app works on an answer, the engine's process says every so many seconds that it is alive, and at least
# `_ALIVE_TIMES` times within the front end's patience.
ALIVE_EVERY = 10.0
_ALIVE_TIMES = 4

# Of a body that nobody waits for, so much is dropped at a time.
_UNREAD_BYTES = 2**16

# Requests that may be forwarded at the same time: each has a descriptor in both processes. More than the uploads that
# may be under way, so that the engine's process decides about these. Health and the documentation, which need no key,
# have as much room of their own each: neither do slow uploads keep an orchestrator from asking for health, nor do
# strangers who read the documentation slowly, and these keep nobody from uploading. Of each room one principal, or
# address, takes no more than it leaves to others.
MAX_FORWARDED = 256

_SILENT = "the process with the engine does not answer"
_WANTED = "onebert.wanted"
_ALIVE = "onebert.alive"
SCOPE = (
    *("type", "asgi", "http_version", "server", "client", "scheme"),
    *("method", "root_path", "path", "raw_path", "query_string", "headers"),
)


class Forwarding:
    """An app that answers some questions itself; every other request is for the app behind a Unix socket.

    Args:
        app: answers its own questions.
        own: in which formats these are asked.
        path: of the socket.
        keys: a request that these do not let through is for `app`, too, which refuses it: it shall cost no connection.
        refuse: makes an app that answers with an error where nobody does behind the socket.
        patience: seconds for which the other process may send nothing, not even that it is alive, before it counts as
            hung. An app that takes long does not: its process goes on to say that it is alive. Time in which the client
            is waited for does not count. Requests for health have `HEALTH_PATIENCE`, since whoever asks for it gives up
            soon.
    """

    def __init__(
        self,
        app: ASGIApp,
        own: Formats,
        path: str,
        keys: ApiKeys,
        refuse: Callable[[OneBertError], ASGIApp],
        patience: float = 60.0,
    ) -> None:
        self._patience = patience
        self._app = app
        self._own = own
        self._path = path
        self._keys = keys
        self._refuse = refuse
        self._keyed, self._health, self._documentation = _room(), _room(), _room()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Has the app's own questions answered, and forwards any other request."""
        # First, since what the app answers itself, it checks itself: the signature of a token costs a while.
        is_own = scope["type"] != "http" or REFUSAL in scope["state"] or self._own.asked(scope)
        whose = None if is_own else await self._keys.let_through(scope)
        if whose is None:
            await self._app(scope, receive, send)
            return
        room, patience = self._room_of(scope["path"])
        try:
            room.take(whose.name, 1)
            try:
                await self._forward(scope, receive, send, patience)
            finally:
                room.give_back(whose.name, 1)
        except OneBertError as error:
            await self._refuse(error)(scope, receive, send)

    def _room_of(self, path: str) -> tuple[Permits, float]:
        """Where a request to a path counts, and the patience with it."""
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
                    # Once the answer has begun, the server can only cut the connection.
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
    """The client of a forwarded request: its body is sent on, one part each time that the app asks for one."""

    def __init__(self, receive: Receive, writer: asyncio.StreamWriter) -> None:
        self.left = False
        self._receive = receive
        self._writer = writer
        self._pulled: asyncio.Task[None] | None = None

    def pull(self) -> None:
        self._pulled = asyncio.create_task(self._pull())

    @property
    def awaited(self) -> bool:
        """Whether the app has asked for a part of the body that has not come."""
        return self._pulled is not None and not self._pulled.done()

    def stop(self) -> None:
        if self._pulled is not None:
            self._pulled.cancel()

    async def _pull(self) -> None:
        message = await self._receive()
        self.left = message["type"] == "http.disconnect"
        self._writer.write(framed(message))


async def _message(reader: asyncio.StreamReader, client: _Client, patience: float) -> Any:
    """The next message of the app or its process; None where the process is gone, or hangs."""
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


def refusing(error: OneBertError) -> ASGIApp:
    """An app that answers every request with this error."""

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        await problem_response(scope, error)(scope, receive, send)

    return refuse


def forwarded_to(
    app: ASGIApp, patience: float = 60.0
) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """The other side: serves one request for each connection.

    Args:
        app: answers the requests; it may take longer than `patience`, and its event loop may not.
        patience: of the front ends.
    """
    alive_every = min(ALIVE_EVERY, patience / _ALIVE_TIMES)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        whole, reading = True, asyncio.Lock()

        async def receive() -> Message:
            nonlocal whole
            # A read that was cancelled may have taken half a message, and what follows cannot be told apart.
            if not whole:
                return {"type": "http.disconnect"}
            whole = False
            writer.write(framed({"type": _WANTED}))
            async with reading:
                message = await read_message(reader)
            whole = True
            return message or {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            # A front end that is gone is like a client that has left: the app learns of it from its next `receive`.
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
            # The app has logged its exception; all that is left to do is to cut the connection.
            with suppress(Exception):
                if scope := await read_message(reader):
                    await app(scope, receive, send)
        finally:
            alive.cancel()
            try:
                if not writer.is_closing():
                    writer.write_eof()
                # The app may have cancelled its own reading, and left it to end.
                async with reading:
                    await _drop_unread(reader, patience)
            finally:
                writer.close()

    return serve


async def _drop_unread(reader: asyncio.StreamReader, patience: float) -> None:
    """Waits until the front end has closed its side.

    A part of the body that the app no longer waited for may lie unread. A kernel resets a connection that is closed so,
    and the front end would lose the answer.
    """
    with suppress(ConnectionError, TimeoutError):
        async with asyncio.timeout(patience):
            while await reader.read(_UNREAD_BYTES):
                pass
