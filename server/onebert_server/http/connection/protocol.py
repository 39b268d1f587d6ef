"""HTTP/1.1 on a connection, for uvicorn: answers one request at a time, and bounds how long each step may take.

Requests that a client sends ahead (pipelining) wait unread. A stand-in replaces a request that cannot be parsed: it
carries the refusal in its state through the app, so that it gets an id, is counted, and returns a problem.
"""

import asyncio
from typing import Any, cast
from urllib.parse import unquote

from starlette.types import Scope
from uvicorn import Config
from uvicorn.server import ServerState

from onebert_server.http.connection import refusals
from onebert_server.http.connection.connections import Connections
from onebert_server.http.connection.exchange import Exchange
from onebert_server.http.connection.reader import Reader, Request, Unreadable
from onebert_server.http.head import HEAD, Head

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
# Pieces of a connection's bytes, and parts of bodies in them, that one turn of the event loop parses: about half
# a millisecond.
AT_ONCE = 128

_STAND_IN = Request("1.1", "OTHER", b"/", b"", Head(((b"host", b"localhost"), (b"connection", b"close"))), False)


class HttpProtocol(asyncio.Protocol):
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
        self._app, self._server, self._shared = config.loaded_app, server_state, connections
        self._loop = _loop or asyncio.get_running_loop()
        self._reader = Reader()
        # Seconds of the loop's clock: what is waited for is due then, 0 while nothing is.
        self._due = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._socket: asyncio.Transport
        self._common: Scope = {}  # the part of the scope that all requests share
        self._exchange: Exchange | None = None  # the newest request with a complete head
        self._busy = False  # the app works on a request that has arrived whole
        self._deaf = False  # the rest is discarded unparsed
        self._closing = self._abandoned = self._lingers = False
        self._dropped, self._most_dropped = 0, LINGER_BYTES
        self.reads, self.writable = True, asyncio.Event()
        self.writable.set()
        self._pushing: asyncio.TimerHandle | None = None

    # The connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Starts to wait for a head; over the connection limit, closes the longest-waiting one or refuses this one."""
        self._socket = cast(asyncio.Transport, transport)
        self._common = {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.3"},
            "server": _address(transport.get_extra_info("sockname")),
            "client": _address(transport.get_extra_info("peername")),
            "scheme": "http",
            "root_path": "",
        }
        self._server.connections.add(cast(Any, self))
        if len(self._server.connections) > self._shared.most and not self._shared.make_room():
            self._refuse(refusals.TOO_MANY)
            return
        self._wait(HEAD_TIMEOUT)

    def connection_lost(self, exc: Exception | None) -> None:
        self._server.connections.discard(cast(Any, self))
        self._closing = self._deaf = True
        self._shared.waiting.pop(self, None)
        self._due = 0.0
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
        self.balance()
        self._socket.write_eof()
        self._linger()

    @property
    def closing(self) -> bool:
        return self._closing or self._socket.is_closing()

    # Reading

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            self._drop(len(data))
            return
        self._reader.add(data)
        self._read_on()

    def _read_on(self) -> None:
        """Parses what has arrived up to the end of one request; the bytes behind it wait for its response."""
        reader, parsed = self._reader, 0
        while reader.ahead and not (self._deaf or self._busy):
            if parsed >= AT_ONCE:
                if self.reads:
                    self._read(False)
                self._loop.call_soon(self._read_on)
                return
            began, refusal = reader.in_head, None
            try:
                reader.parse()
            except Unreadable as error:
                refusal = error.refusal
            self._take(began)
            if refusal is not None:
                self._refuse(refusal)
            parsed += 1 + len(reader.parts)
        self.balance()

    def _take(self, began: bool) -> None:
        """Takes what the reader has parsed; `began`: within a head that had begun before."""
        reader = self._reader
        if reader.request is not None:
            self._begin(reader.request)
        elif reader.in_head and not (began or self._lingers):
            self._set_due(HEAD_TIMEOUT)
        exchange = self._exchange
        if exchange is None or not (reader.parts or reader.ended):
            return
        if not exchange.complete:
            exchange.add(reader.parts, reader.content, last=reader.ended)
            self._busy = reader.ended
        elif reader.ended:
            # The response came before the end of the body.
            exchange.whole = True
            self._wait(KEEP_ALIVE)
        else:
            self._drop(reader.content)

    def _drop(self, count: int) -> None:
        self._dropped += count
        if self._dropped > self._most_dropped:
            self.abandon()

    def balance(self) -> None:
        """Stops reading while the connection holds its share, and reads on after that."""
        held = 0 if self._exchange is None else self._exchange.held
        reads = self._deaf or (held <= HIGH_WATER and self._reader.ahead <= HIGH_WATER)
        if reads != self.reads:
            self._read(reads)

    def _read(self, reads: bool) -> None:
        if not self._socket.is_closing():
            self.reads = reads
            (self._socket.resume_reading if reads else self._socket.pause_reading)()

    # Requests

    def _begin(self, request: Request, refusal: refusals.Refusal | None = None) -> Exchange:
        """Runs the app on a request; `refusal` is in the state of a stand-in."""
        self._stop_waiting()
        self._dropped = 0
        version, method, path, query, head, keep_alive = request
        if method == "CONNECT":
            # A tunnel follows, which this server cannot parse.
            self._deaf, keep_alive = True, False
        # An HTTP/1.0 client would take `100 Continue` for its response.
        continues = version == "1.1" and head.fields.get(b"expect", b"").lower() == b"100-continue"
        name = path.decode("ascii")
        scope = {
            **self._common,
            "http_version": version,
            "method": method,
            "path": unquote(name) if "%" in name else name,
            "raw_path": path,
            "query_string": query,
            "headers": head.raw,
            "state": {HEAD: head} if refusal is None else {HEAD: head, refusals.REFUSAL: refusal},
        }
        exchange = Exchange(self, self._server, scope, keep_alive=keep_alive, continues=continues)
        task = self._loop.create_task(cast(Any, self._app(scope, exchange.receive, exchange.send)))
        self._server.tasks.add(task)
        task.add_done_callback(exchange.ended)
        self._exchange = exchange
        return exchange

    def _refuse(self, refusal: refusals.Refusal) -> None:
        """Answers with an error and discards all further data."""
        self._stop_waiting()
        self._deaf = True
        self._reader.clear()
        self._shared.log.warning("a request was refused with %d: %s", *refusal)
        if self._exchange is not None and not (self._exchange.whole or self._reader.in_head):
            # The head was valid and the body is not: deliver the refusal through the request's `receive`.
            self._exchange.refuse(refusal)
            if self._exchange.complete:
                self.close()
            return
        self._most_dropped = NOISE_BYTES
        self._begin(_STAND_IN, refusal).add((), 0, last=True)

    # For the exchange

    def write(self, data: bytes) -> None:
        if not self._socket.is_closing():
            self._socket.write(data)

    def awaits_body(self, waits: bool) -> None:
        """Reports that the app begins or ceases to wait for more of the body."""
        if waits:
            self._shared.waiting[self] = None
        # A running timer or a closing connection has its own entry in `waiting`.
        elif not (self._due or self.closing):
            self._shared.waiting.pop(self, None)

    def completed(self, exchange: Exchange) -> None:
        self._server.total_requests += 1
        self._busy = False
        if not exchange.keep_alive:
            self.close()
        elif self._closing or self._socket.is_closing():
            return
        elif exchange.whole:
            self._wait(KEEP_ALIVE)
            if self._reader.ahead or not self.reads:
                self._read_on()
        else:
            self._linger()
            self.balance()

    # Writing

    def pause_writing(self) -> None:
        self.writable.clear()
        self._push(None)

    def resume_writing(self) -> None:
        self.writable.set()
        if self._pushing is not None:
            self._pushing.cancel()
            self._pushing = None

    def _push(self, before: int | None) -> None:
        """Aborts the connection if the client has read too little in the last `SEND_TIMEOUT` seconds."""
        waiting = self._socket.get_write_buffer_size()
        if before is not None and before - waiting < MIN_SENT_BYTES:
            self._socket.abort()
        else:
            self._pushing = self._loop.call_later(SEND_TIMEOUT, self._push, waiting)

    # Waiting

    def _linger(self) -> None:
        self._wait(LINGER_TIMEOUT)
        self._lingers = True

    def _wait(self, seconds: float) -> None:
        waiting = self._shared.waiting
        waiting.pop(self, None)
        waiting[self] = None
        self._lingers = False
        self._set_due(seconds)

    def _set_due(self, seconds: float) -> None:
        self._due = self._loop.time() + seconds
        if self._timer is None or self._timer.when() > self._due:
            self._set_timer()

    def _stop_waiting(self) -> None:
        self._shared.waiting.pop(self, None)
        self._due = 0.0

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_at(self._due, self._fire)

    def _fire(self) -> None:
        self._timer = None
        if not self._due:
            return
        if self._loop.time() < self._due:
            self._set_timer()
        elif self._reader.in_head and not self._lingers:
            self._refuse(refusals.TOO_SLOW)
        else:
            self.abandon()


def _address(info: Any) -> tuple[str, int] | None:
    """A transport's address as an ASGI scope has it; None for a Unix socket."""
    return (str(info[0]), int(info[1])) if isinstance(info, tuple) else None
