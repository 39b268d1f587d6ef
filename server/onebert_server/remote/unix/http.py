"""Forwarded requests: HTTP over a Unix socket of the process with the engine, one connection each.

Bodies and answers pass as they come; what one side does not read waits in the other side's socket.
"""

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from urllib.parse import quote, unquote

import httptools
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onebert_server.http.connection.refusals import REFUSAL
from onebert_server.http.head import HEAD, Field
from onebert_server.remote.transport import NO_WORD, SILENT
from onebert_server.remote.unix.channel import connected
from onebert_store.errors import ShuttingDown

logger = logging.getLogger("onebert.forwarding")

# Bytes that are read at a time.
_PIECE_BYTES = 2**16
# Fields of a response that each connection has of its own.
_OF_CONNECTIONS = frozenset({b"date", b"transfer-encoding"})


async def forward(
    name: str, scope: Scope, receive: Receive, send: Send, deadline: float, heard: Callable[[], float]
) -> None:
    """See `Transport.forward`; `heard` returns when the process was heard last, in seconds of `time.monotonic()`."""
    try:
        reader, writer = await asyncio.open_unix_connection(sock=await connected(name))
    except OSError as error:
        logger.error("the process with the engine cannot be reached: %s", error.strerror)
        raise ShuttingDown(NO_WORD) from None
    response = _ForwardedResponse(scope)
    writer.write(_head(scope))
    sending = asyncio.create_task(_send_body(scope, receive, writer, response.wanted))
    try:
        while not response.complete:
            try:
                data = await _read(reader, lambda: max(deadline, heard() + SILENT))
            except TimeoutError:
                # After the response has begun, the server can only cut the connection.
                raise ConnectionError(NO_WORD) if response.begun else TimeoutError from None
            if not data:
                return await _ended(sending, response)
            for message in response.messages(data):
                await send(message)
    finally:
        sending.cancel()
        writer.close()


async def _read(reader: asyncio.StreamReader, until: Callable[[], float]) -> bytes:
    """Reads some bytes, or none at the end; raises TimeoutError at a time that may move meanwhile."""
    while (left := until() - time.monotonic()) > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(left):
                try:
                    return await reader.read(_PIECE_BYTES)
                except ConnectionError:
                    return b""
    raise TimeoutError


async def _ended(sending: "asyncio.Task[None]", response: "_ForwardedResponse") -> None:
    """Ends a request whose connection has been closed: by this side for its client, or by the other process."""
    if sending.done() and not sending.exception():
        if REFUSAL not in response.state:
            return
        if not response.begun:
            status, detail = response.state[REFUSAL]
            raise HTTPException(status, detail, {"Connection": "close"})
    raise ConnectionError(NO_WORD) if response.begun else ShuttingDown(NO_WORD)


async def _send_body(scope: Scope, receive: Receive, writer: asyncio.StreamWriter, wanted: asyncio.Event) -> None:
    """Sends the body; closes the connection once the client has left, or its body cannot be read."""
    chunked = b"transfer-encoding" in scope["state"][HEAD].fields
    try:
        await wanted.wait()
        while (message := await receive())["type"] == "http.request" and REFUSAL not in scope["state"]:
            body = message.get("body", b"")
            if chunked:
                body = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
                body += b"" if message.get("more_body", False) else b"0\r\n\r\n"
            writer.write(body)
            await writer.drain()
    finally:
        writer.transport.abort()


def _head(scope: Scope) -> bytes:
    """The request's head as it came, with the client's address before its path; see `forwarded`."""
    host, port = scope.get("client") or ("", 0)
    query = b"?" + scope["query_string"] if scope["query_string"] else b""
    target = b"/%b%b%b" % (quote(f"{host}:{port}").encode(), scope["raw_path"], query)
    line = b"%b %b HTTP/%b" % (scope["method"].encode(), target, scope["http_version"].encode())
    return b"\r\n".join([line, *(b"%b:%b" % field for field in scope["headers"]), b"\r\n"])


def forwarded(app: ASGIApp) -> ASGIApp:
    """Wraps the app of the process with the engine for what front ends forward: its clients are theirs."""
    return partial(_answer, app)


async def _answer(app: ASGIApp, scope: Scope, receive: Receive, send: Send) -> None:
    if REFUSAL not in scope["state"]:
        _, client, path = scope["raw_path"].split(b"/", 2)
        host, _, port = unquote(client.decode()).rpartition(":")
        changed = {"client": (host, int(port)), "raw_path": b"/" + path, "path": "/" + scope["path"].split("/", 2)[2]}
        scope = {**scope, **changed}
    await app(scope, receive, send)


class _ForwardedResponse:
    """Makes messages of the bytes of a response.

    Attributes:
        wanted: set once the other process wants the body; a client that expects `100 Continue` waits for that, too.
        begun, complete: the head, and the end, have come.
    """

    def __init__(self, scope: Scope) -> None:
        self.wanted = asyncio.Event()
        expects = scope["state"][HEAD].first(b"expect").lower() == "100-continue"
        if not expects or scope["http_version"] != "1.1":
            self.wanted.set()
        self.begun = self.complete = False
        self.state = scope["state"]
        self._has_body = scope["method"] != "HEAD"
        self._parser = httptools.HttpResponseParser(self)
        self._fields: list[Field] = []
        self._messages: list[Message] = []

    def messages(self, data: bytes) -> list[Message]:
        """The messages of the next bytes; raises httptools.HttpParserError."""
        self._messages = []
        self._parser.feed_data(data)
        return self._messages

    def on_header(self, name: bytes, value: bytes) -> None:
        if name.lower() not in _OF_CONNECTIONS:
            self._fields.append((name, value))

    def on_headers_complete(self) -> None:
        status, fields, self._fields = self._parser.get_status_code(), self._fields, []
        if status == 100:
            self.wanted.set()
            return
        self.begun = True
        self._messages.append({"type": "http.response.start", "status": status, "headers": fields})
        if not self._has_body:
            self.on_message_complete()

    def on_body(self, body: bytes) -> None:
        self._messages.append({"type": "http.response.body", "body": body, "more_body": True})

    def on_message_complete(self) -> None:
        if self.begun and not self.complete:
            self.complete = True
            self._messages.append({"type": "http.response.body", "body": b""})
