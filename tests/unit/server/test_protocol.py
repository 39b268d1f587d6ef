"""What of a connection is read as which request, how much of it may wait, and what a request hears of its client."""

import asyncio
import socket
from contextlib import ExitStack, asynccontextmanager, suppress

import pytest
import uvloop
from uvicorn.server import ServerState

from framing import REFUSED, TAKEN
from loops import Clock
from onebert_server.http.connection.listener import Listener
from onebert_server.http.connection.protocol import (
    HEAD_TIMEOUT,
    HIGH_WATER,
    KEEP_ALIVE,
    LINGER_TIMEOUT,
    MIN_SENT_BYTES,
    PIECE_COST,
    SEND_TIMEOUT,
    TURN_BYTES,
)
from onebert_server.http.connection.refusals import MAX_HEAD_BYTES, MAX_HEADER_LINES, REFUSAL
from onebert_server.http.web import uvicorn_config

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"DELETE /next HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
LOOP = Clock


@asynccontextmanager
async def connecting(app):
    """Connects to a server with this app, as often as it is called."""
    config = uvicorn_config(app, shutdown_timeout=1)
    config.load()
    state, loop = ServerState(), asyncio.get_running_loop()
    server = await loop.create_server(
        lambda: config.http_protocol_class(config=config, server_state=state, app_state={}), "127.0.0.1", 0
    )
    writers = []

    async def connect():
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        writers.append(writer)
        return reader, writer

    async with server:
        yield connect
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def answer(scope, receive, send):
    """Answers with the status of the refusal in the request's state, or with 200."""
    refusal = scope["state"].get(REFUSAL)
    headers = [(b"content-length", b"0"), *([(b"connection", b"close")] if refusal else [])]
    await send({"type": "http.response.start", "status": refusal[0] if refusal else 200, "headers": headers})
    await send({"type": "http.response.body"})


def statuses(received):
    return [int(part[:3]) for part in received.split(b"HTTP/1.1 ")[1:]]


async def exchanged(sent):
    """What a server answers, and which bodies of which paths its app was asked with."""
    asked = []

    async def app(scope, receive, send):
        body, more = b"", True
        while more and REFUSAL not in scope["state"]:
            message = await receive()
            body, more = body + message.get("body", b""), message.get("more_body", False)
        if REFUSAL not in scope["state"]:
            asked.append((scope["path"], body))
        await answer(scope, receive, send)

    async with connecting(app) as connect:
        reader, writer = await connect()
        writer.write(sent)
        received = await reader.read()
    return received, asked


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED)
async def test_unclear_framing_is_refused(sent):
    received, asked = await exchanged(sent + LAST)
    assert statuses(received) == [400]
    assert asked == []


@pytest.mark.parametrize("sent", TAKEN.values(), ids=TAKEN)
async def test_clear_framing_is_taken(sent):
    received, asked = await exchanged(sent + LAST)
    assert statuses(received) == [200, 200]
    assert asked == [("/v1/classify", b"hello"), ("/next", b"")]


@pytest.mark.parametrize(("version", "expected"), [(b"1.1", [100, 200]), (b"1.0", [200])])
async def test_a_client_of_an_old_version_is_not_told_to_continue(version, expected):
    fields = b"Host: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\nConnection: close\r\n"
    received, asked = await exchanged(b"POST / HTTP/" + version + b"\r\n" + fields + b"\r\nhello")
    assert (statuses(received), asked) == (expected, [("/", b"hello")])


async def test_pipelined_requests_wait_unread_until_those_before_them_are_answered():
    """Parsed, they would hold the event loop, and memory for as long as they wait."""
    newest = []

    async def app(scope, receive, send):
        await turns()
        newest.append(protocol.scope is scope)
        await answer(scope, receive, send)

    protocol, wire = wired(app)
    protocol.data_received(GET * 1000)
    while len(statuses(wire.written)) < 1000:
        await turns()
    assert newest == [True] * 1000


@pytest.mark.parametrize("answers", [False, True])
async def test_pipelined_requests_are_bounded_in_bytes(answers):
    """Be it that the app asks for the body of each, or whether the client has left."""
    asked = 0

    async def app(scope, receive, send):
        nonlocal asked
        asked += 1
        await receive()
        await turns()
        await (answer(scope, receive, send) if answers else receive())

    protocol, wire = wired(app)
    sent = 0
    for _ in range(1000):
        if wire.reading:
            protocol.data_received(GET * 100)
            sent += len(GET) * 100
        await turns()
    assert sent <= HIGH_WATER + (asked + 2 * 100) * len(GET)


async def test_empty_lines_in_a_body_hold_up_nobody():
    """Each of them may end a message, so the parser gets what lies between two of them at a time."""

    got, turned = [], 0

    async def app(scope, receive, send):
        more = True
        while more:
            message = await receive()
            got.append(len(message["body"]))
            more = message["more_body"]
        await answer(scope, receive, send)

    protocol, wire = wired(app)
    size = 2**18
    chunk = b"%x\r\n%b\r\n0\r\n\r\n" % (size, b"\r\n\r\n" * (size // 4))
    protocol.data_received(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk)
    while not wire.written:
        turned += 1
        await asyncio.sleep(0)
    assert (sum(got), statuses(wire.written)) == (size, [200])
    assert turned > 2**16 // (TURN_BYTES // PIECE_COST + 1)


async def test_only_an_idle_connection_is_closed():
    protocol, wire = wired(answer)
    loop = asyncio.get_running_loop()
    for _ in range(5):
        for part in (GET[:9], GET[9:]):
            protocol.data_received(part)
            await turns()
        loop.moved += KEEP_ALIVE / 2
        await turns()
    answered, still_open = statuses(wire.written), not wire.closed
    loop.moved += KEEP_ALIVE
    await turns()
    assert (answered, still_open, wire.closed) == ([200] * 5, True, True)


@pytest.mark.parametrize("loop", [asyncio.SelectorEventLoop, uvloop.new_event_loop])
def test_all_that_wait_are_accepted_in_a_few_turns(loop):
    """Beside six hundred busy connections a turn takes 40 ms: a probe waited for as many turns as others had come."""

    async def accept(listener, clients):
        opened = []
        listening = Listener(listener, lambda: Noting(opened))
        for client in clients:
            client.connect(listener.getsockname())
        turns = 0
        while len(opened) < len(clients):
            await asyncio.sleep(0)
            turns += 1
        listening.close()
        for connection in opened:
            connection.close()
        await asyncio.sleep(0)
        return turns

    with ExitStack() as sockets, asyncio.Runner(loop_factory=loop) as runner:
        listener = sockets.enter_context(socket.create_server(("127.0.0.1", 0)))
        clients = [sockets.enter_context(socket.socket()) for _ in range(100)]
        assert runner.run(accept(listener, clients)) < 20


class Noting(asyncio.Protocol):
    def __init__(self, opened):
        self.opened = opened

    def connection_made(self, transport):
        self.opened.append(transport)


@pytest.mark.parametrize(
    ("sent", "expected"),
    [(b"", []), (GET[:-2] + b"X: a", [408]), (GET[:-2] + b"X: a\r\n" * 3, [408]), (GET + GET[:-2], [200, 408])],
    ids=["silent", "field", "lines", "second request"],
)
async def test_who_sends_no_whole_request_is_let_go(sent, expected):
    protocol, wire = wired(answer)
    loop = asyncio.get_running_loop()
    protocol.data_received(sent)
    for seconds in (HEAD_TIMEOUT, LINGER_TIMEOUT):
        await turns()
        loop.moved += seconds
        await turns()
    assert (statuses(wire.written), wire.closed) == (expected, True)


@pytest.mark.parametrize(("read", "closed"), [(MIN_SENT_BYTES - 1, True), (MIN_SENT_BYTES, False)])
async def test_who_reads_too_little_of_an_answer_is_let_go(read, closed):
    answering = asyncio.Event()

    async def app(scope, receive, send):
        await answering.wait()

    protocol, wire = wired(app)
    wire.unread = 2**20
    protocol.data_received(GET)
    await turns()
    protocol.pause_writing()
    wire.unread -= read
    asyncio.get_running_loop().moved += SEND_TIMEOUT
    await turns()
    assert wire.closed is closed
    protocol.resume_writing()
    answering.set()


class Wire(asyncio.Transport):
    """The transport of a connection whose client sends what a test says."""

    def __init__(self):
        super().__init__()
        self.written, self.writes, self.closed, self.reading, self.unread = b"", 0, False, True, 0

    def get_extra_info(self, name, default=None):
        return default

    def write(self, data):
        self.written += data
        self.writes += 1

    def write_eof(self):
        pass

    def close(self):
        self.closed = True

    abort = close

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return self.unread

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


def wired(app):
    """A connection, and the wire below it."""
    config = uvicorn_config(app, shutdown_timeout=1)
    config.load()
    wire = Wire()
    protocol = config.http_protocol_class(config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(wire)
    return protocol, wire


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_head_has_so_much_time_however_often_a_part_of_it_comes():
    protocol, wire = wired(answer)
    protocol.data_received(GET[:-2])
    parts, loop = 0, asyncio.get_running_loop()
    while not wire.closed and parts < MAX_HEADER_LINES:
        protocol.data_received(b"X: a\r\n")
        parts += 1
        loop.moved += 0.5
        await turns()
    assert statuses(wire.written) == [408]
    # The time of the head itself, then that in which its sender may still find the answer.
    assert parts <= 2 * (LINGER_TIMEOUT + HEAD_TIMEOUT) + 2


async def test_a_refused_body_in_chunks_keeps_its_connection():
    async with connecting(answer) as connect:
        reader, writer = await connect()
        writer.write(b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        head = await reader.readuntil(b"\r\n\r\n")
        for _ in range(2 * MAX_HEAD_BYTES // 2**10):
            writer.write(b"400\r\n" + b"a" * 2**10 + b"\r\n")
            await writer.drain()
        writer.write(b"0\r\n\r\n" + LAST)
        assert statuses(head + await reader.read()) == [200, 200]


async def test_a_response_without_a_body_is_written_before_its_client_closes():
    protocol, wire = wired(answer)
    protocol.data_received(GET.replace(b"GET", b"HEAD"))
    await asyncio.sleep(0)
    assert statuses(wire.written) == [200]


async def test_a_body_that_waits_for_the_app_is_not_closed_to_make_room():
    may_read, taken = asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        await may_read.wait()
        await receive()
        taken.set()
        await receive()

    protocol, wire = wired(app)
    protocol.data_received(b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nab")
    assert protocol in protocol._shared.waiting
    protocol.data_received(b"a" * HIGH_WATER)
    assert (wire.reading, protocol in protocol._shared.waiting) == (False, False)
    may_read.set()
    await taken.wait()
    await turns()
    assert (wire.reading, protocol in protocol._shared.waiting) == (True, True)
    protocol.connection_lost(None)
    await turns()


@pytest.mark.parametrize(("fields", "writes"), [([(b"content-length", b"2")], [0, 1]), ([], [1, 2])])
async def test_a_head_is_written_with_its_body_or_before_a_stream(fields, writes):
    body_may_come, counts = asyncio.Event(), []

    async def app(scope, receive, send):
        await send({"type": "http.response.start", "status": 200, "headers": fields})
        await body_may_come.wait()
        await send({"type": "http.response.body", "body": b"ok"})

    protocol, wire = wired(app)
    protocol.data_received(GET)
    await turns()
    counts.append(wire.writes)
    body_may_come.set()
    await turns()
    assert [*counts, wire.writes] == writes
    assert (statuses(wire.written), b"ok" in wire.written) == ([200], True)


async def test_the_lines_of_a_head_are_counted_as_they_come():
    protocol, wire = wired(answer)
    protocol.data_received(GET[:-2] + b"a:\r\n" * 60_000)
    await turns()
    assert statuses(wire.written) == [431]
    assert len(protocol.headers) <= MAX_HEADER_LINES + 1


async def test_a_body_that_the_app_does_not_take_is_left_in_the_socket():
    """As is all of a request that waits for the answer before it."""

    may_read, bodies = asyncio.Semaphore(0), []

    async def app(scope, receive, send):
        more = scope["method"] == "POST"
        while more:
            await may_read.acquire()
            message = await receive()
            bodies.append(len(message["body"]))
            more = message["more_body"]
        await answer(scope, receive, send)

    protocol, wire = wired(app)
    length, sent = 40 * HIGH_WATER, 0
    protocol.data_received(GET + b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length)
    for _ in range(1000):
        if wire.reading and sent < length:
            protocol.data_received(bytes(HIGH_WATER))
            sent += HIGH_WATER
        await turns()
        may_read.release()
    assert max(bodies) <= 2 * HIGH_WATER
    assert sum(bodies) == length
    assert statuses(wire.written) == [200] * 2


@pytest.mark.parametrize("requests", [1, 2, 3])
async def test_a_request_hears_that_its_client_has_left(requests):
    """What is pipelined behind it never begins."""
    begun, started, left = [], asyncio.Event(), asyncio.Event()

    async def app(scope, receive, send):
        begun.append(scope)
        await receive()
        started.set()
        if (await receive())["type"] == "http.disconnect":
            left.set()

    async with connecting(app) as connect:
        _, writer = await connect()
        writer.write(GET * requests)
        await started.wait()
        writer.close()
        await left.wait()
    assert len(begun) == 1


@pytest.mark.parametrize("requests", [1, 2])
async def test_a_request_whose_client_leaves_before_it_begins_hears_of_it(requests):
    heard = []

    async def app(scope, receive, send):
        heard.append((await receive())["type"])

    protocol, _ = wired(app)
    protocol.data_received(GET * requests)
    protocol.connection_lost(None)
    await turns()
    assert heard == ["http.disconnect"]
