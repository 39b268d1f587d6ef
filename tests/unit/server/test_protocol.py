"""What of a connection is read as which request, how much of it may wait, and what a request hears of its client."""

import asyncio
import gc
from contextlib import asynccontextmanager, suppress

import pytest
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import RequestResponseCycle
from uvicorn.server import ServerState

from framing import REFUSED, TAKEN
from onebert_server.http.protocol import LINGER_TIMEOUT, NOISE_BYTES
from onebert_server.http.refusals import MAX_HEADER_LINES, MAX_PIPELINED, REFUSAL, unclear
from onebert_server.http.web import uvicorn_config

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
LAST = b"DELETE /next HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"
RECEIVE_TIMEOUT = 60


class Clock(asyncio.SelectorEventLoop):
    """A loop whose time a test moves."""

    moved = 0.0

    def time(self):
        return super().time() + self.moved


def run(test):
    with asyncio.Runner(loop_factory=Clock) as runner:
        return runner.run(asyncio.wait_for(test, 300))


@asynccontextmanager
async def connecting(app):
    """Connects to a server with this app, as often as it is called."""
    config = uvicorn_config(app, receive_timeout=RECEIVE_TIMEOUT, shutdown_timeout=1)
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


async def answer(scope, send):
    """Answers with the status of the refusal in the request's state, or with 200."""
    refusal = scope["state"].get(REFUSAL)
    headers = [(b"content-length", b"0"), *([(b"connection", b"close")] if refusal else [])]
    await send({"type": "http.response.start", "status": refusal[0] if refusal else 200, "headers": headers})
    await send({"type": "http.response.body"})


def statuses(received):
    return [int(one[:3]) for one in received.split(b"HTTP/1.1 ")[1:]]


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
        await answer(scope, send)

    async with connecting(app) as connect:
        reader, writer = await connect()
        writer.write(sent)
        received = await reader.read()
    return received, asked


@pytest.mark.parametrize("sent", REFUSED.values(), ids=REFUSED)
def test_what_readers_understand_differently_is_refused_and_nothing_behind_it_is_read(sent):
    received, asked = run(exchanged(sent + LAST))
    assert statuses(received) == [400]
    assert asked == []


HOST = (b"host", b"localhost")


@pytest.mark.parametrize(
    ("version", "target", "headers", "rule"),
    [
        ("1.1", b"/", [HOST, (b"content-length", b"018")], "Content-Length must come once, with a plain number"),
        ("1.1", b"/", [HOST, HOST], "Host must come once, with a name or an address"),
        ("1.1", b"/", [HOST, (b"transfer-encoding", b"gzip")], "Transfer-Encoding must come once, and be chunked"),
        ("2.0", b"/", [], "a request must be HTTP/1.1 or 1.0"),
        ("1.1", b"x", [HOST], "the target must be a path, or an http address with one"),
        ("1.1", b"/", [], "a request of HTTP/1.1 must have a Host"),
        ("1.1", b"http://other/", [HOST], "Host must be the host of the target"),
        ("1.0", b"http://other/", [], "Host must be the host of the target"),
        ("1.0", b"/", [(b"transfer-encoding", b"chunked")], "HTTP/1.0 has no Transfer-Encoding"),
        ("1.1", b"http://localhost/", [HOST, (b"transfer-encoding", b"Chunked")], None),
        ("1.1", b"*", [HOST, (b"content-length", b"0")], None),
        ("1.0", b"/", [], None),
    ],
)
def test_a_head_that_is_not_clear_is_refused_by_the_rule_that_it_breaks(version, target, headers, rule):
    assert unclear(version, target, headers) == (rule and (400, rule))


@pytest.mark.parametrize("sent", TAKEN.values(), ids=TAKEN)
def test_what_all_understand_alike_is_taken_with_its_body_and_what_follows(sent):
    received, asked = run(exchanged(sent + LAST))
    assert statuses(received) == [200, 200]
    assert asked == [("/v1/classify", b"hello"), ("/next", b"")]


@pytest.mark.parametrize(("version", "expected"), [(b"1.1", [100, 200]), (b"1.0", [200])])
def test_a_client_of_an_old_version_is_not_told_to_continue(version, expected):
    fields = b"Host: localhost\r\nContent-Length: 5\r\nExpect: 100-continue\r\nConnection: close\r\n"
    received, asked = run(exchanged(b"POST / HTTP/" + version + b"\r\n" + fields + b"\r\nhello"))
    assert (statuses(received), asked) == (expected, [("/", b"hello")])


def cycles():
    gc.collect()
    return sum(type(one) is RequestResponseCycle for one in gc.get_objects())


def test_of_pipelined_requests_a_few_wait_and_what_follows_them_is_not_read():
    """The rest would hold the event loop while it is parsed, and memory until it is answered."""

    async def live():
        begun, may_answer = asyncio.Event(), asyncio.Event()

        async def app(scope, receive, send):
            begun.set()
            await may_answer.wait()
            await answer(scope, send)

        async with connecting(app) as connect:
            connections = [await connect() for _ in range(3)]
            for _, writer in connections:
                writer.write(GET * 10_000)
            for _, writer in connections:
                await writer.drain()
            await begun.wait()
            held = cycles()
            may_answer.set()
            return held, [statuses(await reader.read()) for reader, _ in connections]

    held, answered = run(live())
    assert held <= 3 * (MAX_PIPELINED + 2)
    assert answered == 3 * [[200] * (1 + MAX_PIPELINED) + [503]]


async def _all_that_is_taken(connect, begin, more):
    """Bytes that a sender gets rid of which reads no answer."""
    _, writer = await connect()
    writer.write(begin)
    sent = 0
    with suppress(ConnectionError):
        while sent < 16 * NOISE_BYTES:
            writer.write(more)
            await writer.drain()
            sent += len(more)
    return sent


@pytest.mark.parametrize(
    ("begin", "more"),
    [
        (b"", GET * 1000),
        (GET[:-2] + b"X: ", b"a" * 2**16),
        (GET[:-2], b"X: a\r\n" * 2**13),
        (GET[:-2] + b"Content-Length: 05\r\n\r\n", b"a" * 2**16),
    ],
    ids=["requests", "a field without an end", "fields without an end", "a body without a length"],
)
def test_who_sends_what_is_refused_for_ever_is_cut(begin, more):
    async def live():
        async def app(scope, receive, send):
            await answer(scope, send)

        async with connecting(app) as connect:
            return await _all_that_is_taken(connect, begin, more)

    # What the kernel's buffers hold comes on top.
    assert run(live()) < 4 * NOISE_BYTES


class Wire(asyncio.Transport):
    """The transport of a connection whose client sends what a test says."""

    def __init__(self):
        super().__init__()
        self.written, self.closed, self.reading = b"", False, True

    def get_extra_info(self, name, default=None):
        return default

    def write(self, data):
        self.written += data

    def write_eof(self):
        pass

    def close(self):
        self.closed = True

    abort = close

    def is_closing(self):
        return self.closed

    def get_write_buffer_size(self):
        return 0

    def pause_reading(self):
        self.reading = False

    def resume_reading(self):
        self.reading = True


def wired(app):
    """A connection, and the wire below it."""
    config = uvicorn_config(app, receive_timeout=RECEIVE_TIMEOUT, shutdown_timeout=1)
    config.load()
    wire = Wire()
    protocol = config.http_protocol_class(config=config, server_state=ServerState(), app_state={})
    protocol.connection_made(wire)
    return protocol, wire


async def turns(count=10):
    for _ in range(count):
        await asyncio.sleep(0)


def test_a_head_has_so_much_time_however_often_a_part_of_it_comes():
    async def live():
        async def app(scope, receive, send):
            await answer(scope, send)

        protocol, wire = wired(app)
        protocol.data_received(GET[:-2])
        parts, loop = 0, asyncio.get_running_loop()
        while not wire.closed and parts < MAX_HEADER_LINES:
            protocol.data_received(b"X: a\r\n")
            parts += 1
            loop.moved += 0.5
            await turns()
        return statuses(wire.written), parts

    answered, parts = run(live())
    assert answered == [408]
    # The time of the head itself, then that in which its sender may still find the answer.
    assert parts <= 2 * (LINGER_TIMEOUT + 10) + 2


def test_the_lines_of_a_head_are_counted_as_they_come():
    async def live():
        async def app(scope, receive, send):
            await answer(scope, send)

        protocol, wire = wired(app)
        protocol.data_received(GET[:-2] + b"a:\r\n" * 60_000)
        await turns()
        return statuses(wire.written), len(protocol.headers)

    answered, held = run(live())
    assert answered == [431]
    assert held <= MAX_HEADER_LINES + 1


def test_the_body_of_a_request_that_waits_is_left_in_the_socket():
    """Each answer before it, and each look for the client, lets uvicorn read on."""

    async def live():
        may_answer, bodies = asyncio.Semaphore(0), []

        async def app(scope, receive, send):
            if scope["method"] == "POST":
                more = True
                while more:
                    message = await receive()
                    bodies.append(len(message["body"]))
                    more = message["more_body"]
            else:
                looking = asyncio.create_task(_until_left(receive))
                await may_answer.acquire()
                looking.cancel()
            await answer(scope, send)

        protocol, wire = wired(app)
        length, held = 40 * HIGH_WATER_LIMIT, []
        protocol.data_received(
            GET * MAX_PIPELINED + b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % length
        )
        sent = 0
        for _ in range(1000):
            if wire.reading and sent < length:
                protocol.data_received(bytes(HIGH_WATER_LIMIT))
                sent += HIGH_WATER_LIMIT
            held.append(len(protocol.cycle.body))
            await turns()
            may_answer.release()
        return statuses(wire.written), held, bodies, length

    answered, held, bodies, length = run(live())
    assert max(held) <= 3 * HIGH_WATER_LIMIT
    assert sum(bodies) == length
    assert answered == [200] * (MAX_PIPELINED + 1)


async def _until_left(receive):
    while (await receive())["type"] != "http.disconnect":
        pass


@pytest.mark.parametrize("requests", [1, 2, 3])
def test_a_request_hears_that_its_client_has_left_whatever_waits_behind_it(requests):
    """What is pipelined behind it never begins."""
    begun = []

    async def live():
        started, left = asyncio.Event(), asyncio.Event()

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

    run(live())
    assert len(begun) == 1


@pytest.mark.parametrize("requests", [1, 2])
def test_a_request_whose_client_leaves_before_it_begins_hears_of_it(requests):
    async def live():
        heard = []

        async def app(scope, receive, send):
            heard.append((await receive())["type"])

        protocol, _ = wired(app)
        protocol.data_received(GET * requests)
        protocol.connection_lost(None)
        await turns()
        return heard

    assert run(live()) == ["http.disconnect"]
