"""uvicorn's HTTP/1.1 protocol with limits on heads, connections and time, and error responses for unreadable requests.

A stand-in replaces a request that cannot be parsed. It carries the refusal in its state and goes through the app in
the connection's order, so that it gets an id, is counted, and returns a problem.
"""

import asyncio
from typing import Any, cast

import httptools
import uvicorn
from starlette.types import ASGIApp, Message, Receive, Scope, Send
from uvicorn import Config
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol, RequestResponseCycle
from uvicorn.server import ServerState

from onebert_server.http import refusals
from onebert_server.http.connections import Connections
from onebert_server.http.transport import LingeringTransport

# Bytes of a response that a client must read within `Connections.send_timeout`.
MIN_SENT_BYTES = 2**15
# Limits in bytes and seconds on reading the rest of a refused body, so that its sender reads the response.
LINGER_BYTES = 2**27
LINGER_TIMEOUT = 10.0
# The byte limit after an unparseable request. More than two socket buffers, so that its sender reads the response.
NOISE_BYTES = 2**24
# Maximum bytes of chunk framing per byte of content.
CHUNK_OVERHEAD = 8

# The parser gets this in place of an unreadable request.
STAND_IN = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


# The attributes of uvicorn's classes that this protocol uses; fail at import if uvicorn has renamed one.
for _kind, _names in (
    (HttpToolsProtocol, ("app", "cycle", "flow", "headers", "parser", "pipeline", "scope", "timeout_keep_alive_task")),
    (
        RequestResponseCycle,
        ("body", "disconnected", "keep_alive", "message_event", "more_body", "response_complete", "scope"),
    ),
):
    if _missing := set(_names).difference(_kind.__init__.__code__.co_names):
        raise ImportError(f"uvicorn {uvicorn.__version__} has no {_kind.__name__}.{min(_missing)}, which OneBERT needs")


class LimitedProtocol(HttpToolsProtocol):
    """One connection. Its timer runs while it waits for a head, and while it discards an unwanted body."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self._asked, self.app = cast(ASGIApp, self.app), self._run
        self._shared = connections
        self._socket: asyncio.Transport
        self._timer: asyncio.TimerHandle | None = None
        self._pushing: asyncio.TimerHandle | None = None
        self._in_head = False  # a head has begun and is not complete
        self._taken_on = False  # a new parser gets a head that has been read already
        self._began = False  # a message began in the current data
        self._overhead = self._body_bytes = self._head_bytes = 0
        self._running: RequestResponseCycle | None = None  # the request that the app is serving
        self._refusal: refusals.Refusal | None = None  # why a callback stopped the parser
        self._deaf = False  # the rest is discarded unparsed
        self._closing = self._abandoned = False
        self._dropped, self._most_dropped = 0, LINGER_BYTES

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts to wait for a head; over the connection limit, closes the longest-waiting one or refuses this one."""
        self._socket = cast(asyncio.Transport, transport)
        super().connection_made(LingeringTransport(self._socket, self))
        if len(self.connections) > self._shared.most and not self._shared.make_room():
            self._refuse(refusals.TOO_MANY)
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        self._closing = True
        self._stop_waiting()
        self._stop_pushing()
        if self._running is not None and not self._running.response_complete:
            # uvicorn signals the disconnect to the newest pipelined request only; wake the one that is running.
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        if self._closing:
            self._socket.close()
        else:
            super().shutdown()

    def abandon(self) -> None:
        """Closes a waiting connection after it has sent the buffered response; a second call (to make room) aborts."""
        self._stop_waiting()
        if self._abandoned:
            self._socket.abort()
            return
        self._abandoned = self._closing = self._deaf = True
        self._shared.waiting[self] = None
        self._socket.close()

    def close(self) -> None:
        """Closes the connection after the client has had a chance to read the response.

        The kernel resets a connection that is closed with unread bytes, and the client would lose the response. So this
        discards the rest of the body, within bounds.
        """
        if self._closing:
            return
        if not self._deaf and (self.cycle is None or not self.cycle.more_body):
            self.abandon()
            return
        self._closing = self._deaf = True
        self.flow.resume_reading()
        self._socket.write_eof()
        self._wait(LINGER_TIMEOUT)

    @property
    def closing(self) -> bool:
        return self._closing or self._socket.is_closing()

    def resume_reading(self) -> None:
        """Resumes reading, unless the newest pipelined request already buffers its share of a body."""
        if self.pipeline and len(self.cycle.body) > HIGH_WATER_LIMIT:
            self.flow.read_paused = True
        else:
            self._socket.resume_reading()

    # Bytes

    def data_received(self, data: bytes) -> None:
        if self.timeout_keep_alive_task is not None:
            self.timeout_keep_alive_task.cancel()
            self.timeout_keep_alive_task = None
        if self._deaf:
            self._drop(len(data))
            return
        if self._timer is None and not self._answering():
            self._wait()
        self._began, self._body_bytes = False, 0
        try:
            self._parse(data)
        except httptools.HttpParserError:
            self._refuse(self._refusal or refusals.MALFORMED)
            return
        # `on_header` measures complete fields. This bounds data that never completes: an endless field, a chunk
        # extension, trailers.
        if not self._began:
            self._overhead = max(0, self._overhead + len(data) - (CHUNK_OVERHEAD + 1) * self._body_bytes)
        if self._overhead > refusals.MAX_HEAD_BYTES:
            self._refuse(refusals.TOO_LARGE)
        elif self.cycle is not None and self.cycle.response_complete and self.cycle.more_body:
            self._drop(self._body_bytes)

    def _parse(self, data: bytes) -> None:
        """Feeds the parser; ignores upgrade requests, as RFC 9110 allows. Java's client sends one with each request.

        The parser treats the data after such a head as the other protocol, so a new parser takes over the framing.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if self.parser.get_method() == b"CONNECT":
                    # A tunnel follows, which this server cannot parse.
                    self._deaf = True
                    self.cycle.keep_alive = False
                    return
                data = data[upgrade.args[0] :]
                framing = [b"%b: %b\r\n" % field for field in self.headers if field[0] in refusals.FRAMING]
                self.parser, self._taken_on = httptools.HttpRequestParser(self), True
                try:
                    self.parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))
                finally:
                    self._taken_on = False

    def _drop(self, count: int) -> None:
        self._dropped += count
        if self._dropped > self._most_dropped:
            self.abandon()

    def on_message_begin(self) -> None:
        if self._taken_on:
            return
        self._in_head = self._began = True
        self._overhead = self._dropped = self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Ignores trailers; stops the parser over the limits."""
        if not self._in_head:
            return
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > refusals.MAX_HEAD_BYTES or len(self.headers) > refusals.MAX_HEADER_LINES:
            self._stop_at(refusals.TOO_LARGE)

    def on_headers_complete(self) -> None:
        if self._taken_on:
            return
        version = self.parser.get_http_version()
        if self._head_bytes + len(self.url) > refusals.MAX_HEAD_BYTES:
            self._stop_at(refusals.TOO_LARGE)
        if unclear := refusals.unclear(version, self.url, self.headers):
            self._stop_at(unclear)
        if len(self.pipeline) >= refusals.MAX_PIPELINED and not self._deaf:
            self._stop_at(refusals.TOO_DEEP)
        # An HTTP/1.0 client would take `100 Continue` for its response.
        self.expect_100_continue = self.expect_100_continue and version == "1.1"
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def _stop_at(self, refusal: refusals.Refusal) -> None:
        self._refusal = refusal
        # httptools turns any exception of a callback into its own error.
        raise ValueError

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """Waits for the next request if the response came before the end of the body."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            return  # `_parse` feeds the rest to a new parser
        super().on_message_complete()
        if self.cycle.response_complete:
            self.cycle.more_body = False
            self._wait()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._push(None)

    def resume_writing(self) -> None:
        self._stop_pushing()
        super().resume_writing()

    def _push(self, before: int | None) -> None:
        """Aborts the connection if the client has read too little in the last `send_timeout` seconds."""
        waiting = self._socket.get_write_buffer_size()
        if before is not None and before - waiting < MIN_SENT_BYTES:
            self._socket.abort()
        else:
            self._pushing = self.loop.call_later(self._shared.send_timeout, self._push, waiting)

    def _stop_pushing(self) -> None:
        if self._pushing is not None:
            self._pushing.cancel()
            self._pushing = None

    # Requests

    def _refuse(self, refusal: refusals.Refusal) -> None:
        """Queues an error response behind the pending ones and discards all further data."""
        self._stop_waiting()
        self._deaf = True
        self._shared.log.warning("a request was refused with %d: %s", *refusal)
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not self._in_head:
            # The head was valid and the body is not: deliver the refusal through the request's `receive`.
            cycle.keep_alive = False
            cycle.scope["state"][refusals.REFUSAL] = refusal
            cycle.message_event.set()
            if cycle.response_complete:
                self.close()
        else:
            self._most_dropped = NOISE_BYTES
            self.parser, self._refusal = httptools.HttpRequestParser(self), None
            self.parser.feed_data(STAND_IN)
            self.cycle.scope["state"][refusals.REFUSAL] = refusal

    async def _run(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Runs the app with a `receive` that reports a refusal of the body.

        While the app awaits a part of the body, the connection counts as waiting for its client.
        """
        self._running = cycle = cast(RequestResponseCycle, receive.__self__)  # type: ignore[attr-defined]
        # The client may have disconnected since uvicorn created this task.
        cycle.disconnected = cycle.disconnected or self.parser is None
        state = scope["state"]

        async def told() -> Message:
            waits = cycle.more_body and not (self.closing or cycle.response_complete or cycle.body)
            if waits:
                self._shared.waiting[self] = None
            try:
                message = await receive()
            finally:
                # A running timer or a closing connection has its own entry in `waiting`.
                if waits and self._timer is None and not self.closing:
                    self._shared.waiting.pop(self, None)
            return {**message, refusals.REFUSAL: state[refusals.REFUSAL]} if refusals.REFUSAL in state else message

        state[refusals.WHOLE] = not cycle.more_body
        await self._asked(scope, told, send)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self.closing and not self._answering():
            self._wait(LINGER_TIMEOUT if self.cycle.more_body else None)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # Waiting

    def _wait(self, seconds: float | None = None) -> None:
        """Waits for a head; with `seconds` set, for data that will be discarded."""
        self._stop_waiting()
        self._shared.waiting[self] = None
        late = self._head_is_late if seconds is None else self.abandon
        self._timer = self.loop.call_later(seconds or self._shared.head_timeout, late)

    def _stop_waiting(self) -> None:
        self._shared.waiting.pop(self, None)
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _head_is_late(self) -> None:
        if self._in_head:
            self._refuse(refusals.TOO_SLOW)
        else:
            self.abandon()
