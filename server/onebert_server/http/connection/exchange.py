"""One request on a connection and its response, as the ASGI app sees them."""

import asyncio
import http
import logging
from collections.abc import Sequence
from typing import Protocol

from starlette.types import Message, Scope
from uvicorn.server import ServerState

from onebert_server.http.connection.refusals import REFUSAL, WHOLE, Refusal
from onebert_server.http.head import Field
from onebert_server.logs import log_failure

logger = logging.getLogger("onebert.http")

_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_FAILED = b"Internal Server Error"


def _status_line(status: int) -> bytes:
    try:
        return f"HTTP/1.1 {status} {http.HTTPStatus(status).phrase}\r\n".encode()
    except ValueError:
        return b"HTTP/1.1 %d \r\n" % status


_STATUS_LINES = {status: _status_line(status) for status in range(100, 600)}


class Connection(Protocol):
    """The connection of an exchange."""

    reads: bool
    """Whether the connection reads from its socket."""

    writable: asyncio.Event
    """Set while the client has read most of what was written."""

    @property
    def closing(self) -> bool: ...

    def write(self, data: bytes) -> None: ...

    def awaits_body(self, waits: bool) -> None:
        """Reports that the app begins or ceases to wait for more of the body."""

    def balance(self) -> None:
        """Reads on or stops reading, by the bytes that it holds."""

    def completed(self, exchange: "Exchange") -> None: ...

    def close(self) -> None: ...


class Exchange:
    """A request whose head is complete.

    Attributes:
        whole: the request's last byte has arrived.
        complete: the response's last byte has been written.
        left: the client has disconnected.
        held: bytes of the body that the app has not taken yet.
    """

    def __init__(
        self, connection: Connection, server: ServerState, scope: Scope, *, keep_alive: bool, continues: bool
    ) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.whole = self.complete = self.left = False
        self.held = 0
        self._connection = connection
        self._server = server
        self._continues = continues
        self._parts: list[bytes] = []
        self._news = False  # the app has not seen the newest part, or the end, of the body
        self._asked = False  # the app has asked for the body
        self._came: asyncio.Event | None = None
        self._head = b""  # waits for the body's first part, so that both go out at once
        self._started = False
        self._chunked = False
        self._left_to_send = 0

    # Reports of the connection

    def add(self, parts: Sequence[bytes], size: int, *, last: bool) -> None:
        """Adds the next parts of the body; `last`: no others follow."""
        self._parts += parts
        self.held += size
        self.whole = last
        if last and not (self._asked or self._continues):
            self._parts = [b"".join(self._parts)]
            self.scope["state"][WHOLE] = self._parts[0]
        self._wake()

    def refuse(self, refusal: Refusal) -> None:
        """Reports that the request's body is unreadable, to the app that waits for it or has not begun."""
        self.keep_alive = False
        self.scope["state"][REFUSAL] = refusal
        self._wake()

    def leave(self) -> None:
        self.left = True
        self._wake()

    def _wake(self) -> None:
        self._news = True
        if self._came is not None:
            self._came.set()

    def ended(self, task: "asyncio.Task[None]") -> None:
        """Reports that the app has ended; an unfinished response becomes a 500, or cuts the connection if it began."""
        self._server.tasks.discard(task)
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        if error is not None:
            log_failure(logger, "a request", error)
        elif self.complete or self.left:
            return
        if self._started:
            self._connection.close()
            return
        self.keep_alive = False
        self._begin(500, ((b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(_FAILED))))
        self._write(_FAILED, more=False)

    # The app

    async def receive(self) -> Message:
        if self._continues and not self._connection.closing:
            self._continues = False
            await self._connection.writable.wait()
            self._connection.write(_CONTINUE)
        self._asked = True
        while not (self._news or self.complete):
            await self._wait()
        if self.left or self.complete:
            return {"type": "http.disconnect"}
        self._news = False
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self.held = [], 0
        if not self._connection.reads:
            self._connection.balance()
        message = {"type": "http.request", "body": body, "more_body": not self.whole}
        state = self.scope["state"]
        return {**message, REFUSAL: state[REFUSAL]} if REFUSAL in state else message

    async def _wait(self) -> None:
        awaits_body = not (self.whole or self.complete or self._connection.closing)
        if self._came is None:
            self._came = asyncio.Event()
        self._came.clear()
        if awaits_body:
            self._connection.awaits_body(True)
        try:
            await self._came.wait()
        finally:
            if awaits_body:
                self._connection.awaits_body(False)

    async def send(self, message: Message) -> None:
        """Takes a message of ASGI; one that starts the response may have all of its body, too."""
        if self.left:
            return
        if self.complete:
            raise RuntimeError(f"{message['type']} follows the end of the response")
        body = message.get("body")
        if message["type"] == "http.response.start":
            self._begin(message["status"], message.get("headers", ()))
            if body is None:
                return
        elif not self._started:
            raise RuntimeError(f"{message['type']} precedes http.response.start")
        if not self._connection.writable.is_set():
            await self._connection.writable.wait()
        self._write(body or b"", message.get("more_body", False))

    def _write(self, body: bytes, more: bool) -> None:
        if self.scope["method"] == "HEAD":
            body = b""
        elif self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            body = chunk if more else chunk + b"0\r\n\r\n"
        else:
            self._left_to_send -= len(body)
            if self._left_to_send < 0 or (self._left_to_send and not more):
                raise RuntimeError("the response is not as long as its Content-Length")
        self._connection.write(self._head + body)
        self._head = b""
        if not (more or self.left):
            self.complete = True
            self._parts, self.held = [], 0
            if self._came is not None:
                self._came.set()
            self._connection.completed(self)

    def _begin(self, status: int, fields: Sequence[Field]) -> None:
        if self._started:
            raise RuntimeError("the response has begun")
        self._started, self._continues = True, False
        lines = [_STATUS_LINES[status]]
        length, closes = None, False
        for given, value in (*self._server.default_headers, *fields):
            name = given.lower()
            if name == b"content-length":
                length = int(value)
            elif name == b"connection" and b"close" in value.lower():
                closes = True
            lines.append(b"%b: %b\r\n" % (name, value))
        if closes:
            self.keep_alive = False
        elif not self.keep_alive:
            lines.append(b"connection: close\r\n")
        if self.scope["method"] == "HEAD" or status in (204, 304):
            length = 0
        elif length is None:
            self._chunked = True
            lines.append(b"transfer-encoding: chunked\r\n")
        self._left_to_send = length or 0
        self._head = b"".join([*lines, b"\r\n"])
        if self._head.count(b"\n") != len(lines) + 1 or b"\0" in self._head:
            raise RuntimeError("a field of the response has a line break in it")
