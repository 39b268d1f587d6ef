"""HTTP/1.1 on a socket: uvicorn's protocol with bounds on heads, connections and time, and errors a client can read.

A request that cannot be parsed is answered by the app like any other: a stand-in takes its place in the connection's
order, with the refusal in its state, so that it has an id, is counted, and comes as a problem.
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

# Bytes of an answer that its client has to take in `Connections.send_timeout`.
MIN_SENT_BYTES = 2**15
# How much of a refused body is still read, and for how long, so that its sender gets to the answer.
LINGER_BYTES = 2**27
LINGER_TIMEOUT = 10.0
# The same of what is no request: more than two sockets' buffers hold, so that its sender gets to the answer, too.
NOISE_BYTES = 2**24
# A chunk of a chunked body may have so many bytes of framing for each byte of its content.
CHUNK_OVERHEAD = 8

# What the parser is given in place of a request that it cannot read.
STAND_IN = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


# The attributes of uvicorn's classes that this protocol reads or sets: without one of them its bounds would be gone.
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
    """One connection.

    Its timer runs while the connection waits for a head, and again while it drops a body that nobody wants.
    """

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
        self._taken_on = False  # the parser is given a head anew that was read before
        self._began = False  # a message began in the data that is being parsed
        self._overhead = self._body_bytes = self._head_bytes = 0
        self._running: RequestResponseCycle | None = None  # the request that is being answered
        self._refusal: refusals.Refusal | None = None  # why a callback stopped the parser
        self._deaf = False  # nothing more is parsed
        self._closing = self._abandoned = False
        self._dropped, self._most_dropped = 0, LINGER_BYTES

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begins to wait for a head; where one connection too many is open, the one that waits longest is closed."""
        self._socket = cast(asyncio.Transport, transport)
        super().connection_made(LingeringTransport(self._socket, self))
        if len(self.connections) > self._shared.most and not self._shared.make_room():
            self._refuse(refusals.TOO_MANY)
            return
        self._wait()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forgets the connection."""
        self._closing = True
        self._stop_waiting()
        self._stop_pushing()
        if self._running is not None and not self._running.response_complete:
            # uvicorn signals it to the newest request only, which waits behind this one.
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)

    def shutdown(self) -> None:
        """Does not linger while the server ends."""
        if self._closing:
            self._socket.close()
        else:
            super().shutdown()

    def abandon(self) -> None:
        """Closes the connection, which waits for its client.

        What has been answered is still sent, however slowly it is read, until the connection has to make room.
        """
        self._stop_waiting()
        if self._abandoned:
            self._socket.abort()
            return
        self._abandoned = self._closing = self._deaf = True
        self._shared.waiting[self] = None
        self._socket.close()

    def close(self) -> None:
        """Closes the connection when its client has had the chance to read the answer.

        The kernel resets a connection that is closed with unread bytes, and the client then loses the answer. So the
        rest of a body is read and dropped, within bounds.
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
        """Whether nothing more will be answered."""
        return self._closing or self._socket.is_closing()

    def resume_reading(self) -> None:
        """Reads on, unless a request that has not begun already holds as much of its body as one may."""
        if self.pipeline and len(self.cycle.body) > HIGH_WATER_LIMIT:
            self.flow.read_paused = True
        else:
            self._socket.resume_reading()

    # Bytes

    def data_received(self, data: bytes) -> None:
        """Parses what came, within the bounds."""
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
        # The fields of a head are measured as they come. This is for what never completes: one field without an end, an
        # extension of a chunk, trailers.
        if not self._began:
            self._overhead = max(0, self._overhead + len(data) - (CHUNK_OVERHEAD + 1) * self._body_bytes)
        if self._overhead > refusals.MAX_HEAD_BYTES:
            self._refuse(refusals.TOO_LARGE)
        elif self.cycle is not None and self.cycle.response_complete and self.cycle.more_body:
            self._drop(self._body_bytes)

    def _parse(self, data: bytes) -> None:
        """Feeds the parser; whoever asks for another protocol is answered in this one, which RFC 9110 allows.

        Java's client asks with each request. The parser takes what follows such a head for the other protocol, so
        another parser takes it on behind the same framing.
        """
        while True:
            try:
                self.parser.feed_data(data)
                return
            except httptools.HttpParserUpgrade as upgrade:
                if self.parser.get_method() == b"CONNECT":
                    # Nothing that follows can be understood.
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
        """Counts bytes that nobody reads any more."""
        self._dropped += count
        if self._dropped > self._most_dropped:
            self.abandon()

    def on_message_begin(self) -> None:
        """See the parser."""
        if self._taken_on:
            return
        self._in_head = self._began = True
        self._overhead = self._dropped = self._head_bytes = 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """See the parser, which calls it for trailers too; nobody reads those. Raises what stops the parser."""
        if not self._in_head:
            return
        super().on_header(name, value)
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > refusals.MAX_HEAD_BYTES or len(self.headers) > refusals.MAX_HEADER_LINES:
            self._stop_at(refusals.TOO_LARGE)

    def on_headers_complete(self) -> None:
        """See the parser; the request is answered from here on, or raises what stops the parser."""
        if self._taken_on:
            return
        version = self.parser.get_http_version()
        if self._head_bytes + len(self.url) > refusals.MAX_HEAD_BYTES:
            self._stop_at(refusals.TOO_LARGE)
        if unclear := refusals.unclear(version, self.url, self.headers):
            self._stop_at(unclear)
        if len(self.pipeline) >= refusals.MAX_PIPELINED and not self._deaf:
            self._stop_at(refusals.TOO_DEEP)
        # A client of HTTP/1.0 would take `100 Continue` for its answer.
        self.expect_100_continue = self.expect_100_continue and version == "1.1"
        self._in_head = False
        self._stop_waiting()
        super().on_headers_complete()

    def _stop_at(self, refusal: refusals.Refusal) -> None:
        self._refusal = refusal
        # httptools turns it into an error of its own.
        raise ValueError

    def on_body(self, body: bytes) -> None:
        """See the parser."""
        self._body_bytes += len(body)
        super().on_body(body)

    def on_message_complete(self) -> None:
        """See the parser; where the answer came before the body, the wait for the next request begins here."""
        if self.parser.should_upgrade() and self.parser.get_method() != b"CONNECT":
            return  # not for `_parse`
        super().on_message_complete()
        if self.cycle.response_complete:
            self.cycle.more_body = False
            self._wait()

    def pause_writing(self) -> None:
        """The client takes its answers more slowly than they are made; `_push` watches it from now on."""
        super().pause_writing()
        self._push(None)

    def resume_writing(self) -> None:
        """The client has taken most of what waited."""
        self._stop_pushing()
        super().resume_writing()

    def _push(self, before: int | None) -> None:
        """Looks every `send_timeout` seconds, and cuts the connection where the client has taken too little since."""
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
        """Answers in place of what cannot be read, behind all that waits; nothing that follows it is read."""
        self._stop_waiting()
        self._deaf = True
        self._shared.log.warning("a request was refused with %d: %s", *refusal)
        cycle = self.cycle
        if cycle is not None and cycle.more_body and not self._in_head:
            # The head was in order, its body is not: whoever reads it hears of it.
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
        """Runs the app; a message of its body says why there is no more of it, where that is so.

        While the app awaits a part of the body, the connection counts as one that waits for its client.
        """
        self._running = cycle = cast(RequestResponseCycle, receive.__self__)  # type: ignore[attr-defined]
        # The client may have left since uvicorn made this task.
        cycle.disconnected = cycle.disconnected or self.parser is None
        state = scope["state"]

        async def told() -> Message:
            waits = cycle.more_body and not (self.closing or cycle.response_complete or cycle.body)
            if waits:
                self._shared.waiting[self] = None
            try:
                message = await receive()
            finally:
                # With a timer, or when it is closing, the connection waits for something else by now.
                if waits and self._timer is None and not self.closing:
                    self._shared.waiting.pop(self, None)
            return {**message, refusals.REFUSAL: state[refusals.REFUSAL]} if refusals.REFUSAL in state else message

        state[refusals.WHOLE] = not cycle.more_body
        await self._asked(scope, told, send)

    def on_response_complete(self) -> None:
        """Waits for the next request, and for the rest of this one's body no longer than for a head."""
        super().on_response_complete()
        if not self.closing and not self._answering():
            self._wait(LINGER_TIMEOUT if self.cycle.more_body else None)

    def _answering(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    # Waiting

    def _wait(self, seconds: float | None = None) -> None:
        """Begins to wait for a head, or where seconds are given for what will not be read."""
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
