"""What a front end does not answer itself: the ASGI messages of a request go to the engine's process and back.

Each request has a connection of its own. A part of a body is sent when the app asks for it, so that a body waits where
it would without a front end: in the client's socket.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onebert_server.problems import problem_response
from onebert_server.wire import framed, read_message
from onebert_store.errors import ShuttingDown

logger = logging.getLogger("onebert.forwarding")

_WANTED = "onebert.wanted"
_SCOPE = (
    "type",
    "asgi",
    "http_version",
    "server",
    "client",
    "scheme",
    "method",
    "root_path",
    "path",
    "raw_path",
    "query_string",
    "headers",
)


class Forwarding:
    """An app with some routes of its own; every other request is for the app behind a Unix socket.

    Args:
        app: answers its own routes.
        own: which these are.
        path: of the socket.
        refuse: answers where nobody does behind the socket.
    """

    def __init__(self, app: ASGIApp, own: Sequence[BaseRoute], path: str, refuse: ASGIApp) -> None:
        self._app = app
        self._own = own
        self._path = path
        self._refuse = refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answers or forwards."""
        if scope["type"] != "http" or any(route.matches(scope)[0] is Match.FULL for route in self._own):
            await self._app(scope, receive, send)
            return
        try:
            await self._forward(scope, receive, send)
        except _NoAnswer:
            await self._refuse(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            reader, writer = await asyncio.open_unix_connection(self._path)
        except OSError as error:
            logger.error("the process with the engine cannot be reached: %s", error.strerror)
            raise _NoAnswer from None
        client = _Client(receive, writer)
        try:
            writer.write(framed({name: scope[name] for name in _SCOPE}))
            begun, more = False, True
            while more:
                message = await read_message(reader)
                if message is None and client.left:
                    return
                if message is None:
                    # Once the answer has begun, the server can only cut the connection.
                    raise ConnectionError("the engine's process gave up a request") if begun else _NoAnswer
                if message["type"] == _WANTED:
                    client.pull()
                    continue
                begun = True
                await send(message)
                more = message["type"] == "http.response.start" or message.get("more_body", False)
        finally:
            client.stop()
            writer.close()


class _Client:
    """Whose body goes to the app, a part each time it is asked for."""

    def __init__(self, receive: Receive, writer: asyncio.StreamWriter) -> None:
        self.left = False
        self._receive = receive
        self._writer = writer
        self._pulled: asyncio.Task[None] | None = None

    def pull(self) -> None:
        self._pulled = asyncio.create_task(self._pull())

    def stop(self) -> None:
        if self._pulled is not None:
            self._pulled.cancel()

    async def _pull(self) -> None:
        message = await self._receive()
        self.left = message["type"] == "http.disconnect"
        self._writer.write(framed(message))


class _NoAnswer(Exception):
    """The process with the engine has not begun to answer, and will not."""


async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
    """An app that says that the process with the engine does not answer."""
    error = ShuttingDown("the process with the engine does not answer")
    await problem_response(scope, error)(scope, receive, send)


def forwarded_to(app: ASGIApp) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    """The other side: serves one request for each connection."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        whole = True

        async def receive() -> Message:
            nonlocal whole
            # A read that was given up may have taken half a message: nothing that follows it can be told apart.
            if not whole:
                return {"type": "http.disconnect"}
            whole = False
            writer.write(framed({"type": _WANTED}))
            message = await read_message(reader)
            whole = True
            return message or {"type": "http.disconnect"}

        async def send(message: Message) -> None:
            writer.write(framed(message))
            # As it is with a client that has left: the next `receive` says so.
            with suppress(ConnectionError):
                await writer.drain()

        # What the app raises it has logged; all that is left to do is to cut the connection.
        with suppress(Exception):
            if scope := await read_message(reader):
                await app(scope, receive, send)
        writer.close()

    return serve
