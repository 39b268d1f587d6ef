"""uvicorn's HTTP/1.1 protocol with bounds: one request at a time, and a limit on the bytes and the time of each step.

Requests that a client sends ahead (pipelining) wait unparsed. A stand-in replaces a request that cannot be parsed: it
carries the refusal in its state through the app, so that it gets an id, is counted, and returns a problem.
"""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import httptools
from uvicorn import Config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol
from uvicorn.server import ServerState

from onebert_server.http.connection import refusals
from onebert_server.http.connection.connections import Connections
from onebert_server.http.connection.framing import end_of_piece, unclear
from onebert_server.http.head import ARRIVED, HEAD, Head

# Seconds for a complete request head, from its first byte, and for this byte on a new connection.
HEAD_TIMEOUT = 10.0
# Seconds in which a client must read some of its response.
SEND_TIMEOUT = 30.0
# Seconds for which a connection stays open after a request: longer than the 60 of nginx and of load balancers, which
# would else send a request to a connection that is being closed.
KEEP_ALIVE = 75.0
# Bytes that a connection holds, of an untaken body or of requests sent ahead, before it stops reading.
HIGH_WATER = 2**16
# Bytes of a response that a client must read within `SEND_TIMEOUT`.
MIN_SENT_BYTES = 2**15
# Limits in bytes and seconds on reading the rest of a refused body, so that its sender reads the response.
LINGER_BYTES = 2**27
LINGER_TIMEOUT = 10.0
# The byte limit after an unparseable request. More than two socket buffers, so that its sender reads the response.
NOISE_BYTES = 2**24
# Maximum bytes of chunk framing per byte of content.
CHUNK_OVERHEAD = 8
# Bytes of heads and chunks that one turn of the event loop parses, in about a millisecond; each piece counts for so
# many more.
TURN_BYTES = 2**14
PIECE_COST = 2**7

_STAND_IN = b"TRACE / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


class HttpProtocol(HttpToolsProtocol):
    """One connection. Its timer runs while it waits for a head, and while it discards an unwanted body.

    Each request moves the timer's due time, which costs no call of the event loop; if the timer fires early it starts
    again.
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
        self._shared = connections
        self.headers = []
        self._ahead = b""  # received and not parsed yet
        self._yields = False  # the next turn of the event loop parses on
        self._in_body = False  # a head is complete and its body is not
        self._busy = False  # the app works on a request that has arrived whole
        self._body_left = 0  # bytes that the body's declared length leaves to arrive
        # Bytes of the message so far: of its head, then of its framing beyond what its content may take.
        self._overhead = 0
        self._refusal: refusals.Refusal | None = None  # why a callback stops the parser
        self._deaf = self._closing = self._abandoned = False  # deaf: the rest is discarded unparsed
        self._dropped, self._most_dropped = 0, LINGER_BYTES
        # Seconds of the loop's clock: what is waited for is due then, 0 while nothing is.
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._pushing: asyncio.TimerHandle | None = None
        self._begun: Any = None  # the cycle whose response's head has been written
        self._head = b""  # a response's head that waits for its body

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts to wait for a head; over the connection limit, closes the longest-waiting one or refuses this one."""
        super().connection_made(cast(asyncio.Transport, transport))
        self._socket = self.transport
        # uvicorn closes a connection at once: then a client that still sends would not read the response.
        self.transport = cast(
            Any, SimpleNamespace(write=self._write, is_closing=self._socket.is_closing, close=self.close)
        )
        self.flow = FlowControl(cast(Any, SimpleNamespace(pause_reading=self._pause, resume_reading=self._resume)))
        if len(self.connections) > self._shared.most and not self._shared.make_room():
            self._refuse(refusals.TOO_MANY)
        else:
            self._wait(HEAD_TIMEOUT)

    def connection_lost(self, exc: Exception | None) -> None:
        self._deaf = self._closing = True
        self._stop_waiting()
        if self._timer is not None:
            self._timer.cancel()
        self.resume_writing()
        super().connection_lost(exc)
        self.transport = self._socket

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
        if self._head:
            self._write(b"")
        if not (self._deaf or self._in_body or self.flow.read_paused):
            self.abandon()
            return
        self._closing = self._deaf = True
        self._ahead = b""
        self.flow.resume_reading()
        self._socket.write_eof()
        self._wait(LINGER_TIMEOUT)

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._drop(len(data))
            return
        self._ahead = self._ahead + data if self._ahead else data
        self._read_on()

    def _read_on(self) -> None:
        """Parses what has arrived up to the end of one request; the bytes behind it wait for its response."""
        ahead, at, left, self._yields = self._ahead, 0, TURN_BYTES, False
        while at < len(ahead) and left > 0 and not (self._busy or self._deaf):
            declared = self._body_left
            size = min(declared, len(ahead) - at) or end_of_piece(ahead, at)
            if not size:
                break
            left -= PIECE_COST + (0 if declared else size)
            at += size
            self._parse(ahead[at - size : at], declared)
        self._ahead = b"" if self._deaf else ahead[at:]
        if left <= 0 and self._ahead and not self._busy:
            self._yields = True
            self.flow.pause_reading()
            self.loop.call_soon(self._read_on)
            return
        held, waiting = len(self._ahead), self._shared.waiting
        if self._busy:
            waiting.pop(self, None)
        elif self._in_body and not (self._deaf or self.cycle.response_complete):
            # It waits for its client, be it that the app does not wait for the body.
            waiting.pop(self, None)
            waiting[self] = None
            held += len(self.cycle.body)
        if held > HIGH_WATER and not self._deaf:
            # It waits for the app.
            waiting.pop(self, None)
            self.flow.pause_reading()
        elif self.flow.read_paused:
            self.flow.resume_reading()

    def _parse(self, piece: bytes, declared: int) -> None:
        size = len(piece)
        content = len(self.cycle.body) if self._in_body else 0
        begins = not (self._in_body or self._overhead)
        if not declared:
            self._overhead += size
        self._refusal = refusals.MALFORMED
        try:
            self.parser.feed_data(piece)
        except httptools.HttpParserError:
            if self._refusal is not None or not self._read_again():
                self._refuse(self._refusal or refusals.MALFORMED)
                return
        if declared:
            self._body_left = declared - size
        if self._in_body and self.cycle.response_complete:
            self._overhead = 0
            self._drop(size)
        elif self._in_body and not declared:
            self._overhead = max(0, self._overhead - (CHUNK_OVERHEAD + 1) * (len(self.cycle.body) - content))
        elif begins and self._overhead:
            self._wait(HEAD_TIMEOUT)
        # This bounds data that never completes: an endless field, a chunk extension, trailers.
        lines = 0 if self._in_body else len(self.headers)
        if self._overhead > refusals.MAX_HEAD_BYTES or lines > refusals.MAX_HEADER_LINES:
            self._refuse(refusals.TOO_LARGE)

    def _read_again(self) -> bool:
        """Reads a head that asks for another protocol as one that does not: RFC 9110 allows it; Java's client asks so.

        The parser takes all data after such a head as the other protocol's.
        """
        fields = [b"%b: %b\r\n" % field for field in self.headers if field[0] != b"upgrade"]
        line = self.parser.get_method(), self.url, self.parser.get_http_version().encode()
        self.parser = httptools.HttpRequestParser(self)
        try:
            self.parser.feed_data(b"%b %b HTTP/%b\r\n%b\r\n" % (*line, b"".join(fields)))
        except httptools.HttpParserError:
            return False
        return True

    def _drop(self, count: int) -> None:
        self._dropped += count
        if self._dropped > self._most_dropped:
            self.abandon()

    def _pause(self) -> None:
        if not self._socket.is_closing():
            self._socket.pause_reading()

    def _resume(self) -> None:
        # The app may ask for more while enough waits here.
        if self._yields or len(self._ahead) > HIGH_WATER:
            self.flow.read_paused = True
        elif not self._socket.is_closing():
            if self._in_body and not self._deaf:
                self._shared.waiting[self] = None
            self._socket.resume_reading()

    # The parser's callbacks

    def on_headers_complete(self) -> None:
        """Begins the request; stops the parser at one that is too large or unclear."""
        head, version = Head(self.headers), self.parser.get_http_version()
        refusal = unclear(version, self.url, head)
        if self._overhead > refusals.MAX_HEAD_BYTES or len(self.headers) > refusals.MAX_HEADER_LINES:
            refusal = refusals.TOO_LARGE
        if refusal is not None:
            self._refusal = refusal
            # httptools turns any exception of a callback into its own error.
            raise ValueError
        if self.parser.should_upgrade():
            # CONNECT asks for a tunnel.
            self._refusal = refusals.MALFORMED if self.parser.get_method() == b"CONNECT" else None
            raise ValueError
        if version == "1.0":
            # It would take `100 Continue` for its response.
            self.expect_100_continue = False
        super().on_headers_complete()
        self.scope["state"][HEAD] = head
        self.headers = []  # of trailers, which nobody reads
        self._in_body, self._dropped, self._overhead, self._due = True, 0, 0, 0.0
        self._body_left = int(head.fields.get(b"content-length", 0))

    def on_message_complete(self) -> None:
        self._in_body, self._overhead, self.headers, cycle = False, 0, [], self.cycle
        self.scope["state"][ARRIVED] = True
        if cycle.response_complete:
            self._wait(KEEP_ALIVE)
        else:
            self._busy, cycle.more_body = True, False
            cycle.message_event.set()

    def _refuse(self, refusal: refusals.Refusal) -> None:
        """Answers with an error and discards all further data."""
        self._stop_waiting()
        self._deaf = True
        self._ahead = b""
        self._shared.log.warning("a request was refused with %d: %s", *refusal)
        if self._in_body:
            # The head was valid and the body is not: the app that reads it gets the refusal.
            self.cycle.keep_alive = False
            self.cycle.scope["state"][refusals.REFUSAL] = refusal
            self.cycle.message_event.set()
            if self.cycle.response_complete:
                self.close()
            return
        self._most_dropped, self._overhead = NOISE_BYTES, 0
        self.parser = httptools.HttpRequestParser(self)
        self.parser.feed_data(_STAND_IN)
        self.scope["state"][refusals.REFUSAL] = refusal

    # The response

    def _write(self, data: bytes) -> None:
        """Writes a part of a response; the head with the first bytes of the body, as each write is a system call.

        The head of a body of unknown length, whose first part may be long in coming, is written at once.
        """
        begins = self.cycle.response_started and self._begun is not self.cycle
        if begins:
            self._begun = self.cycle
        if begins and self.cycle.chunked_encoding is False:
            self._head = data
        else:
            head, self._head = self._head, b""
            self._socket.write(head + data)

    def on_response_complete(self) -> None:
        if self._head:
            # Of a response without a body.
            self._write(b"")
        self.server_state.total_requests += 1
        self._busy = False
        if self._closing:
            return
        if self._in_body:
            self._wait(LINGER_TIMEOUT)
            self.flow.resume_reading()
        else:
            self._wait(KEEP_ALIVE)
            if self._ahead or self.flow.read_paused:
                self._read_on()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._push(None)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._pushing is not None:
            self._pushing.cancel()
            self._pushing = None

    def _push(self, before: int | None) -> None:
        """Aborts the connection if the client has read too little in the last `SEND_TIMEOUT` seconds."""
        waiting = self._socket.get_write_buffer_size()
        if before is not None and before - waiting < MIN_SENT_BYTES:
            self._socket.abort()
        else:
            self._pushing = self.loop.call_later(SEND_TIMEOUT, self._push, waiting)

    # Waiting

    def _wait(self, seconds: float) -> None:
        self._shared.waiting.pop(self, None)
        self._shared.waiting[self] = None
        self._due = self.loop.time() + seconds
        if self._timer is None or self._timer.when() > self._due:
            self._set_timer()

    def _stop_waiting(self) -> None:
        self._shared.waiting.pop(self, None)
        self._due = 0.0

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self.loop.call_at(self._due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if not self._due:
            return
        if self.loop.time() < self._due:
            self._set_timer()
        elif self._overhead and not (self._in_body or self._deaf):
            self._refuse(refusals.TOO_SLOW)
        else:
            self.abandon()
