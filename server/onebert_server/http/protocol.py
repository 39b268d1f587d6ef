"""HTTP/1.1 on a connection, for uvicorn: reads one request at a time, and bounds its head, its body's framing and time.

Requests that a client sends ahead (pipelining) wait unread. A stand-in replaces a request that cannot be parsed: it
carries the refusal in its state through the app, so that it gets an id, is counted, and returns a problem.
"""

import asyncio
from collections.abc import Sequence
from typing import Any, cast
from urllib.parse import unquote

import httptools
from starlette.types import Scope
from uvicorn import Config
from uvicorn.server import ServerState

from onebert_server.http import refusals
from onebert_server.http.connections import Connections
from onebert_server.http.exchange import Exchange, addressed
from onebert_server.http.head import HEAD, Field, Head

# Seconds for which a connection without a request stays open.
KEEP_ALIVE = 5.0
# Bytes that a connection holds, of an untaken body or of requests sent ahead, before it stops reading.
HIGH_WATER = 2**16
# Bytes of a response that a client must read within `Connections.send_timeout`.
MIN_SENT_BYTES = 2**15
# Limits in bytes and seconds on reading the rest of a refused body, so that its sender reads the response.
LINGER_BYTES = 2**27
LINGER_TIMEOUT = 10.0
# The byte limit after an unparseable request. More than two socket buffers, so that its sender reads the response.
NOISE_BYTES = 2**24
# Maximum bytes of chunk framing per byte of content.
CHUNK_OVERHEAD = 8
# Pieces that one turn of the event loop parses.
PIECES_AT_ONCE = 256

_EMPTY_LINE = b"\r\n\r\n"
_STAND_IN = ((b"host", b"localhost"), (b"connection", b"close"))


class HttpProtocol(asyncio.Protocol):
    """One connection. Its timer runs while it waits for a head, and while it discards an unwanted body."""

    def __init__(
        self,
        connections: Connections,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        self._app, self._server, self._shared = config.loaded_app, server_state, connections
        self._loop = _loop or asyncio.get_running_loop()
        self._parser = httptools.HttpRequestParser(self)
        self._socket: asyncio.Transport
        self._addresses: dict[str, tuple[str, int] | None] = {}
        self._exchange: Exchange | None = None  # the newest request with a complete head
        self._busy = False  # the app works on a request that has arrived whole
        # Received bytes that are not parsed yet, where they begin, and the last bytes before them.
        self._ahead, self._at, self._tail = b"", 0, b""
        self._body_left = 0  # bytes that the body's declared length leaves to arrive
        self._url, self._fields, self._continues = b"", list[Field](), False
        self._in_head = False  # a head has begun and is not complete
        self._taken_on = False  # a new parser gets a head that has been read already
        self._began = False  # a message began in the current piece
        self._overhead = self._body_bytes = self._head_bytes = 0
        self._refusal: refusals.Refusal | None = None  # why a callback stopped the parser
        self._deaf = False  # the rest is discarded unparsed
        self._closing = self._abandoned = False
        self._dropped, self._most_dropped = 0, LINGER_BYTES
        self.reads, self._writable = True, asyncio.Event()
        self._writable.set()
        self._pushing: asyncio.TimerHandle | None = None
        # One timer for all waits: it fires at or before `_due` and starts again.
        self._timer: asyncio.TimerHandle | None = None
        self._due, self._since, self._lingers = 0.0, 0.0, False

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts to wait for a head; over the connection limit, closes the longest-waiting one or refuses this one."""
        self._socket = cast(asyncio.Transport, transport)
        self._addresses = {
            "server": addressed(transport.get_extra_info("sockname")),
            "client": addressed(transport.get_extra_info("peername")),
        }
        self._server.connections.add(cast(Any, self))
        if len(self._server.connections) > self._shared.most and not self._shared.make_room():
            self._refuse(refusals.TOO_MANY)
            return
        self._wait(self._shared.head_timeout)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(cast(Any, self))
        self._closing = self._deaf = True
        self._stop_waiting()
        if self._timer is not None:
            self._timer.cancel()
        self.resume_writing()
        if self._exchange is not None:
            self._exchange.leave()

    def shutdown(self) -> None:
        """Called by uvicorn when the server stops: closes now, or after the running request."""
        if self._closing or self._exchange is None or self._exchange.complete:
            self._socket.close()
        else:
            self._exchange.keep_alive = False

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
        if self.reads and not self._deaf and (self._exchange is None or self._exchange.whole):
            self.abandon()
            return
        self._closing = self._deaf = True
        self._balance()
        self._socket.write_eof()
        self._linger()

    @property
    def closing(self) -> bool:
        return self._closing or self._socket.is_closing()

    # Bytes

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._drop(len(data))
            return
        self._ahead, self._at = (self._ahead[self._at :] + data if self._ahead else data), 0
        self._read_on()

    def _read_on(self) -> None:
        """Parses what has arrived up to the end of one request; the bytes behind it wait for its response."""
        pieces = 0
        while self._ahead and not (self._deaf or self._busy):
            if pieces == PIECES_AT_ONCE:
                if self.reads:
                    self._read(False)
                self._loop.call_soon(self._read_on)
                return
            end = self._end_of_piece()
            piece = self._ahead if end - self._at == len(self._ahead) else self._ahead[self._at : end]
            self._tail = (self._tail + piece)[-3:] if len(piece) < 3 else piece[-3:]
            self._ahead, self._at = (b"", 0) if end == len(self._ahead) else (self._ahead, end)
            self._parse(piece)
            pieces += 1
        self._balance()

    def _end_of_piece(self) -> int:
        """Where the next message may end: behind a body of declared length, or behind an empty line."""
        if self._body_left:
            return min(len(self._ahead), self._at + self._body_left)
        joint = (self._tail + self._ahead[self._at : self._at + 3]).find(_EMPTY_LINE)
        if joint >= 0:
            return self._at + joint + len(_EMPTY_LINE) - len(self._tail)
        end = self._ahead.find(_EMPTY_LINE, self._at)
        return len(self._ahead) if end < 0 else end + len(_EMPTY_LINE)

    def _parse(self, piece: bytes) -> None:
        if self._exchange is None or self._exchange.complete:
            self._head_comes()
        self._began, self._body_bytes = False, 0
        try:
            try:
                self._parser.feed_data(piece)
            except httptools.HttpParserUpgrade:
                self._ignore_upgrade()
        except httptools.HttpParserError:
            self._refuse(self._refusal or refusals.MALFORMED)
            return
        # `on_header` measures complete fields. This bounds data that never completes: an endless field, a chunk
        # extension, trailers.
        if not self._began:
            self._overhead = max(0, self._overhead + len(piece) - (CHUNK_OVERHEAD + 1) * self._body_bytes)
        if self._overhead > refusals.MAX_HEAD_BYTES:
            self._refuse(refusals.TOO_LARGE)
        elif self._exchange is not None and self._exchange.complete and not self._exchange.whole:
            self._drop(self._body_bytes)

    def _ignore_upgrade(self) -> None:
        """Reads on as HTTP/1.1, as RFC 9110 allows; Java's client asks for an upgrade with each request.

        The parser treats the data after such a head as the other protocol, so a new parser takes over the framing.
        """
        if self._parser.get_method() == b"CONNECT":
            # A tunnel follows, which this server cannot parse.
            self._deaf = True
            if self._exchange is not None:
                self._exchange.keep_alive = False
            return
        framing = [b"%b: %b\r\n" % field for field in self._fields if field[0] in refusals.FRAMING]
        self._parser, self._taken_on = httptools.HttpRequestParser(self), True
        try:
            self._parser.feed_data(b"POST / HTTP/1.1\r\n%b\r\n" % b"".join(framing))
        finally:
            self._taken_on = False

    def _drop(self, count: int) -> None:
        self._dropped += count
        if self._dropped > self._most_dropped:
            self.abandon()

    def _balance(self) -> None:
        """Stops reading while the connection holds its share, and reads on after that."""
        held = 0 if self._exchange is None else self._exchange.held
        reads = self._deaf or (held <= HIGH_WATER and len(self._ahead) - self._at <= HIGH_WATER)
        if reads != self.reads:
            self._read(reads)

    def _read(self, reads: bool) -> None:
        if not self._socket.is_closing():
            self.reads = reads
            (self._socket.resume_reading if reads else self._socket.pause_reading)()

    # The parser's callbacks

    def on_message_begin(self) -> None:
        if self._taken_on:
            return
        self._in_head = self._began = True
        self._overhead = self._dropped = self._head_bytes = 0
        self._url, self._fields, self._continues = b"", [], False

    def on_url(self, url: bytes) -> None:
        self._url += url

    def on_header(self, name: bytes, value: bytes) -> None:
        """Ignores trailers; stops the parser over the limits."""
        if not self._in_head:
            return
        name = name.lower()
        self._fields.append((name, value))
        if name == b"expect" and value.lower() == b"100-continue":
            self._continues = True
        self._head_bytes += len(name) + len(value) + 4
        if self._head_bytes > refusals.MAX_HEAD_BYTES or len(self._fields) > refusals.MAX_HEADER_LINES:
            self._stop_at(refusals.TOO_LARGE)

    def on_headers_complete(self) -> None:
        if self._taken_on:
            return
        version = self._parser.get_http_version()
        if self._head_bytes + len(self._url) > refusals.MAX_HEAD_BYTES:
            self._stop_at(refusals.TOO_LARGE)
        head = Head(self._fields)
        if unclear := refusals.unclear(version, self._url, head):
            self._stop_at(unclear)
        self._in_head = False
        self._stop_waiting()
        self._body_left = int(head.fields.get(b"content-length", 0))
        self._begin(
            self._scope(version, self._parser.get_method().decode("ascii"), self._url, head),
            keep_alive=version != "1.0" and self._parser.should_keep_alive(),
            # An HTTP/1.0 client would take `100 Continue` for its response.
            continues=self._continues and version == "1.1",
        )

    def _stop_at(self, refusal: refusals.Refusal) -> None:
        self._refusal = refusal
        # httptools turns any exception of a callback into its own error.
        raise ValueError

    def on_body(self, body: bytes) -> None:
        self._body_bytes += len(body)
        self._body_left = max(0, self._body_left - len(body))
        if self._exchange is not None and not self._exchange.complete:
            self._exchange.add(body)

    def on_message_complete(self) -> None:
        """Waits for the next request if the response came before the end of the body."""
        if self._parser.should_upgrade() and self._parser.get_method() != b"CONNECT":
            return  # `_ignore_upgrade` hands the framing to a new parser
        if self._exchange is None:
            return
        self._exchange.end()
        self._busy = not self._exchange.complete
        if not self._busy:
            self._idle()

    # Requests

    def _scope(self, version: str, method: str, url: bytes, head: Head) -> Scope:
        parsed = httptools.parse_url(url)
        path = parsed.path.decode("ascii")
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "http_version": version,
            **self._addresses,
            "scheme": "http",
            "method": method,
            "root_path": "",
            "path": unquote(path) if "%" in path else path,
            "raw_path": parsed.path,
            "query_string": parsed.query or b"",
            "headers": head.raw,
            "state": {HEAD: head},
        }

    def _begin(self, scope: Scope, *, keep_alive: bool, continues: bool = False) -> Exchange:
        self._exchange = Exchange(self, scope, keep_alive=keep_alive, continues=continues)
        task = self._loop.create_task(self._exchange.run(cast(Any, self._app)))
        self._server.tasks.add(task)
        task.add_done_callback(self._server.tasks.discard)
        return self._exchange

    def _refuse(self, refusal: refusals.Refusal) -> None:
        """Answers with an error and discards all further data."""
        self._stop_waiting()
        self._deaf, self._ahead, self._at = True, b"", 0
        self._shared.log.warning("a request was refused with %d: %s", *refusal)
        if self._exchange is not None and not (self._exchange.whole or self._in_head):
            # The head was valid and the body is not: deliver the refusal through the request's `receive`.
            self._exchange.refuse(refusal)
            if self._exchange.complete:
                self.close()
            return
        self._most_dropped = NOISE_BYTES
        scope = self._scope("1.1", "GET", b"/", Head(_STAND_IN))
        scope["state"][refusals.REFUSAL] = refusal
        self._begin(scope, keep_alive=False).end()

    def default_fields(self) -> Sequence[Field]:
        return self._server.default_headers

    async def written(self, data: bytes) -> None:
        if not self._writable.is_set():
            await self._writable.wait()
        if not self._socket.is_closing():
            self._socket.write(data)

    def awaits_body(self, waits: bool) -> None:
        if waits:
            self._shared.waiting[self] = None
        # A running timer or a closing connection has its own entry in `waiting`.
        elif not (self._due or self.closing):
            self._shared.waiting.pop(self, None)

    def taken(self) -> None:
        self._balance()

    def completed(self, exchange: Exchange) -> None:
        self._server.total_requests += 1
        self._busy = False
        if not exchange.keep_alive:
            self.close()
        elif self.closing:
            return
        elif exchange.whole:
            self._idle()
            if self._ahead:
                self._read_on()
        else:
            self._linger()

    # Writing

    def pause_writing(self) -> None:
        self._writable.clear()
        self._push(None)

    def resume_writing(self) -> None:
        self._writable.set()
        if self._pushing is not None:
            self._pushing.cancel()
            self._pushing = None

    def _push(self, before: int | None) -> None:
        """Aborts the connection if the client has read too little in the last `send_timeout` seconds."""
        waiting = self._socket.get_write_buffer_size()
        if before is not None and before - waiting < MIN_SENT_BYTES:
            self._socket.abort()
        else:
            self._pushing = self._loop.call_later(self._shared.send_timeout, self._push, waiting)

    # Waiting

    def _idle(self) -> None:
        """Waits for the next request, which has `head_timeout` from now once it begins."""
        self._wait(min(KEEP_ALIVE, self._shared.head_timeout))

    def _head_comes(self) -> None:
        if not (self._in_head or self._lingers):
            self._due = self._since + self._shared.head_timeout

    def _linger(self) -> None:
        """Waits for data that will be discarded."""
        self._wait(LINGER_TIMEOUT)
        self._lingers = True

    def _wait(self, seconds: float) -> None:
        self._shared.waiting.pop(self, None)
        self._shared.waiting[self] = None
        self._since, self._lingers = self._loop.time(), False
        self._due = self._since + seconds
        if self._timer is None or self._timer.when() > self._due:
            self._set_timer()

    def _stop_waiting(self) -> None:
        self._shared.waiting.pop(self, None)
        self._due = 0.0

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due, self._time_is_up)

    def _time_is_up(self) -> None:
        self._timer = None
        if not self._due:
            return
        if self._loop.time() < self._due:
            self._set_timer()
        elif self._in_head and not self._lingers:
            self._refuse(refusals.TOO_SLOW)
        else:
            self.abandon()
