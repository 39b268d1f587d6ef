"""One request on a connection and its response, as the ASGI app sees them."""

import asyncio
import http
import logging
from collections.abc import Sequence
from typing import Any, Protocol

from starlette.types import ASGIApp, Message, Scope

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

    @property
    def closing(self) -> bool: ...

    def default_fields(self) -> Sequence[Field]: ...

    async def written(self, data: bytes) -> None:
        """Writes, once the client has read most of what was written before."""

    def awaits_body(self, waits: bool) -> None:
        """Reports that the app begins or ceases to wait for more of the body."""

    def taken(self) -> None:
        """Reports that the app has taken all of the body that has arrived."""

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

    def __init__(self, connection: Connection, scope: Scope, *, keep_alive: bool, continues: bool) -> None:
        self.scope = scope
        self.keep_alive = keep_alive
        self.whole = self.complete = self.left = False
        self.held = 0
        self._connection = connection
        self._continues = continues
        self._parts: list[bytes] = []
        self._news = False  # the app has not seen the newest part, or the end, of the body
        self._came: asyncio.Event | None = None
        self._head = b""  # waits for the body's first part, so that both go out at once
        self._started = False
        self._chunked = False
        self._left_to_send = 0

    # Reports of the connection

    def add(self, body: bytes) -> None:
        self._parts.append(body)
        self.held += len(body)
        self._wake()

    def end(self) -> None:
        self.whole = True
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

    # The app

    async def run(self, app: ASGIApp) -> None:
        """Runs the app; a response that it does not finish is a 500, or cuts the connection if it has begun."""
        self.scope["state"][WHOLE] = self.whole
        try:
            await app(self.scope, self.receive, self.send)
            failed = not (self.complete or self.left)
        except BaseException as error:
            log_failure(logger, "a request", error)
            failed = True
        if failed and self._started:
            self._connection.close()
        elif failed:
            self.keep_alive = False
            kind, length = (b"content-type", b"text/plain; charset=utf-8"), (b"content-length", b"%d" % len(_FAILED))
            await self.send({"type": "http.response.start", "status": 500, "headers": [kind, length]})
            await self.send({"type": "http.response.body", "body": _FAILED})

    async def receive(self) -> Message:
        if self._continues and not self._connection.closing:
            self._continues = False
            await self._connection.written(_CONTINUE)
        while not self._news:
            await self._wait()
        if self.left or self.complete:
            return {"type": "http.disconnect"}
        self._news = False
        body = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts, self.held = [], 0
        if not self._connection.reads:
            self._connection.taken()
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
        if self.left:
            return
        if self.complete:
            raise RuntimeError(f"{message['type']} follows the end of the response")
        if message["type"] == "http.response.start":
            self._begin(message["status"], message.get("headers", ()))
            return
        if not self._started:
            raise RuntimeError(f"{message['type']} precedes http.response.start")
        more = message.get("more_body", False)
        data, self._head = self._head + self._framed(message.get("body", b""), more), b""
        await self._connection.written(data)
        if not (more or self.left):
            self.complete = True
            self._wake()
            self._connection.completed(self)

    def _begin(self, status: int, fields: Sequence[Field]) -> None:
        if self._started:
            raise RuntimeError("the response has begun")
        self._started, self._continues = True, False
        lines = [_STATUS_LINES[status]]
        length, closes = None, False
        for given, value in (*self._connection.default_fields(), *fields):
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

    def _framed(self, body: bytes, more: bool) -> bytes:
        if self.scope["method"] == "HEAD":
            return b""
        if self._chunked:
            chunk = b"%x\r\n%b\r\n" % (len(body), body) if body else b""
            return chunk if more else chunk + b"0\r\n\r\n"
        self._left_to_send -= len(body)
        if self._left_to_send < 0 or (self._left_to_send and not more):
            raise RuntimeError("the response is not as long as its Content-Length")
        return body


def addressed(info: Any) -> tuple[str, int] | None:
    """A transport's address as an ASGI scope has it; None for a Unix socket."""
    return (str(info[0]), int(info[1])) if isinstance(info, tuple) else None
