"""Relayed requests: an app that takes its time is waited for, and so many requests and bytes are under way at once."""

import asyncio
import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onebert_server.access.context import Context
from onebert_server.access.keys import KeyRing
from onebert_server.access.principal import root
from onebert_server.answering.edge import Edge
from onebert_server.facades.routes import answering
from onebert_server.http.body import BODY, Bodies, Body
from onebert_server.http.connection.refusals import REFUSAL
from onebert_server.http.formats import formats_of
from onebert_server.http.head import HEAD, Head
from onebert_server.http.problems import problems_alone
from onebert_server.limits import MAX_COMING_BYTES, MAX_UNTAKEN_BYTES
from onebert_server.remote import relay, wire
from onebert_server.remote.relay import MAX_RELAYED, Relay, Template
from onebert_server.remote.relayed import Relayed
from onebert_server.remote.unix import frames, relaying
from onebert_server.remote.unix.channel import framed, read_frame
from onebert_server.remote.unix.relaying import relayed_to
from onebert_server.run import front_end
from onebert_server.settings import Settings
from onebert_server.telemetry.metrics import Metrics
from onebert_server.telemetry.telemetry import Telemetry
from onebert_store.errors import DeadlineExceeded, OneBertError, QueueFull, ShuttingDown, Unhealthy

REQUEST = wire.Request(
    {"type": "http", "method": "PUT", "path": "/v1/tasks/slow"}, [], root("somebody"), "an-id", 60.0, 0
)
SHORT = msgspec.structs.replace(REQUEST, remaining=0.01)


def never() -> float:
    """When a process that stands still was heard last."""
    return -math.inf


async def slow_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Takes longer than its request's time."""
    ends = time.monotonic() + 2 * SHORT.remaining
    while time.monotonic() < ends:
        await asyncio.sleep(0)
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"stored"})


async def broken_app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise ZeroDivisionError


class Given(Body):
    """A body that comes in these messages, and then no more of it, nor its end."""

    def __init__(self, *messages: Message) -> None:
        context = Context(root("somebody"), time.monotonic() + 60, time.monotonic(), "an-id")
        given = iter(messages)

        async def receive() -> Message:
            return next(given, None) or await asyncio.get_running_loop().create_future()

        scope = {"type": "http", "method": "PUT", "state": {HEAD: Head()}}
        super().__init__(scope, receive, context, Bodies(2**20, 60))


UNREADABLE = {"type": "http.request", REFUSAL: (400, "the body's framing is broken")}


def part(body: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


async def closed(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with suppress(ConnectionError):
        await writer.wait_closed()


async def whole(replies: AsyncGenerator[wire.Relayed]) -> tuple[wire.Response, bytes]:
    matched, response, *parts = [one async for one in replies]
    assert isinstance(matched, wire.Matched)
    return cast(wire.Response, response), b"".join(cast(wire.Part, one).body for one in parts)


def relayed(
    app: ASGIApp, path: str, *messages: Message, times: int = 1, request: wire.Request = REQUEST
) -> list[tuple[wire.Response, bytes]]:
    """What an app behind a socket answers, whose process is heard all the time."""
    answers = Relayed(app, problems_alone, Settings.model_construct(max_body_bytes=2**20))

    async def ask() -> list[tuple[wire.Response, bytes]]:
        async with await asyncio.start_unix_server(relayed_to(answers), path):
            asked = (relaying.relay(path, request, Given(*messages), time.monotonic) for _ in range(times))
            return [await whole(one) for one in asked]

    return asyncio.run(ask())


def test_an_app_is_waited_for_beyond_the_requests_time_while_its_process_works(tmp_path: Path) -> None:
    """As where an upload waits for its turn; one that hangs is in tests/integration/http/test_front_ends.py."""
    [(response, body)] = relayed(slow_app, str(tmp_path / "relay"), request=SHORT)
    assert (response.status, body) == (201, b"stored")


async def test_a_transport_may_pass_body_and_answer_whole() -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        body = (await receive())["body"]
        left = asyncio.create_task(receive())
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": body, "more_body": True})
        await send({"type": "http.response.body", "body": b", answered"})
        assert not left.done(), "only the front end knows whether the client has left"
        left.cancel()

    answers = Relayed(app, problems_alone, Settings.model_construct(max_body_bytes=2**20))
    matched, response, answer = await answers.whole(REQUEST, b"question")
    assert (matched.route, response.status, answer) == ("unmatched", 200, b"question, answered")


def test_an_app_that_fails_is_an_internal_error_and_after_its_head_a_cut(tmp_path: Path) -> None:
    async def failing(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    [(response, body)] = relayed(failing, str(tmp_path / "relay"))
    assert (response.status, response.problem) == (500, "internal")
    assert b"an-id" in body
    with pytest.raises(ConnectionError):
        relayed(broken_app, str(tmp_path / "relay"))


ANSWER = 300_000 * b"a"


async def hasty_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Asks for the body, and has answered before it comes."""
    asking = asyncio.create_task(receive())
    await asyncio.sleep(0)
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": ANSWER})
    asking.cancel()


def test_an_answer_arrives_whole_where_the_app_did_not_wait_for_the_body_that_it_asked_for(tmp_path: Path) -> None:
    """The body lies unread in a connection that closes, which a kernel then resets."""
    found = relayed(hasty_app, str(tmp_path / "relay"), part(1_000_000 * b"q", False), times=50)
    assert [body for _, body in found] == 50 * [ANSWER]


def test_a_body_is_read_as_the_app_asks_for_it_and_its_refusal_is_the_requests(tmp_path: Path) -> None:
    taken = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        while (message := await receive())["more_body"]:
            taken.append(message["body"])

    [(response, body)] = relayed(app, str(tmp_path / "relay"), part(b"first"), part(b"second"), UNREADABLE)
    assert (response.status, (b"connection", b"close") in response.headers) == (400, True)
    assert b"framing is broken" in body
    assert taken == [b"first", b"second"]


def test_a_body_that_is_refused_after_the_response_has_begun_changes_nothing(tmp_path: Path) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 408, "headers": []})
        assert (await receive())["body"] == b"some"
        with pytest.raises(HTTPException):
            await receive()
        await send({"type": "http.response.body", "body": b"too late"})

    [(response, body)] = relayed(app, str(tmp_path / "relay"), part(b"some"), UNREADABLE)
    assert (response.status, body) == (408, b"too late")


async def test_a_process_that_hangs_with_a_client_that_waits_is_given_up(tmp_path: Path) -> None:
    """It has read the whole body, and waits for the client to leave."""
    path, ended = str(tmp_path / "relay"), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            writer.write(framed(frames.Wanted()))
            await read_frame(reader, wire.decoder(wire.Request))
            await read_frame(reader, wire.decoder(wire.Part))
            writer.write(framed(frames.Wanted()))
            await reader.read(-1)
            await closed(writer)
        finally:
            # On a slow machine it is given up while it reads.
            ended.set()

    async with await asyncio.start_unix_server(serve, path):
        with pytest.raises(TimeoutError):
            await whole(relaying.relay(path, SHORT, Given(part(b"", False)), never))
        await ended.wait()


async def test_the_route_is_known_before_the_body_is_refused(tmp_path: Path) -> None:
    path, seen = str(tmp_path / "relay"), []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        scope["route"] = Template("/v1/tasks/{task}/versions")
        await receive()

    answers = Relayed(app, problems_alone, Settings.model_construct(max_body_bytes=2**20))
    async with await asyncio.start_unix_server(relayed_to(answers), path):
        replies = relaying.relay(path, REQUEST, Given(UNREADABLE), time.monotonic)
        seen.append(await anext(replies))
        seen.append(await anext(replies))
        await replies.aclose()
    [matched, refused] = seen
    assert matched == wire.Matched("/v1/tasks/{task}/versions")
    assert isinstance(refused, wire.Response)
    assert refused.status == 400


def test_an_app_that_watches_its_client_sees_that_it_has_left(tmp_path: Path) -> None:
    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert not (await receive())["more_body"]
        assert (await receive())["type"] == "http.disconnect"

    with pytest.raises(ClientDisconnect):
        relayed(app, str(tmp_path / "relay"), part(b"", False), {"type": "http.disconnect"})


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("hangs", [False, True])
async def test_a_process_that_hangs_is_told_from_one_that_is_gone(tmp_path: Path, hangs: bool, begun: bool) -> None:
    """An answer that has begun can only be cut."""
    path, ended = str(tmp_path / "engine"), asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await read_frame(reader, wire.decoder(wire.Request))
        if begun:
            writer.write(framed(wire.Response(200, [], None)))
        if hangs:
            await reader.read(-1)
        await closed(writer)
        ended.set()

    async with await asyncio.start_unix_server(serve, path):
        with pytest.raises(ConnectionError if begun else TimeoutError if hangs else ShuttingDown):
            async for _ in relaying.relay(path, SHORT if hangs else REQUEST, Given(), never):
                pass
        await ended.wait()


def relay_to(answer: Callable[[wire.Request], Awaitable[None]]) -> Relay:
    """A relay whose other process answers once this is awaited."""

    class Transport:
        full = False

        async def relay(self, request: wire.Request, body: Body) -> AsyncGenerator[wire.Relayed]:
            await answer(request)
            yield wire.Response(200, [], None)
            yield wire.Part(b"{}", False)

    edge = Edge(cast(Any, None), Metrics())
    return Relay(cast(Any, None), [], edge, cast(Any, Transport()), Settings.model_construct(max_upload_bytes=100))


async def asked(app: Relay, address: str, path: str, query: bytes = b"") -> int:
    """The status of the response to a request."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    context = Context(root(address), time.monotonic() + 60, time.monotonic(), "an-id")
    scope: Scope = {**dict.fromkeys(relay.SCOPE), "type": "http", "method": "GET", "path": path, "headers": []}
    scope |= {"query_string": query, "state": {HEAD: Head(), "context": context, BODY: Given()}}
    await app(scope, cast(Any, None), send)
    return cast(int, sent[0]["status"])


@pytest.mark.parametrize(("path", "others"), [("/v1/tasks/slow", ["/docs"]), ("/docs", ["/v1/tasks/slow"])])
async def test_who_relays_much_leaves_room_for_others_and_all_of_it_for_health(path: str, others: list[str]) -> None:
    """As where one tenant's uploads wait, or strangers read the documentation slowly."""
    share = MAX_RELAYED // 2

    opened = asyncio.Event()

    async def answer(request: wire.Request) -> None:
        if request.scope["query_string"] == b"slow":
            await opened.wait()

    app = relay_to(answer)
    waiting = [asyncio.create_task(asked(app, "127.0.0.1", path, b"slow")) for _ in range(share)]
    await asyncio.sleep(0)
    with pytest.raises(QueueFull):
        await asked(app, "127.0.0.1", path)
    for address, other in [("127.0.0.2", path), *(("127.0.0.1", one) for one in ("/healthz", "/readyz", *others))]:
        assert await asked(app, address, other) == 200
    opened.set()
    assert await asyncio.gather(*waiting) == [200] * share
    assert await asked(app, "127.0.0.1", path) == 200


@pytest.mark.parametrize(
    ("path", "error"), [("/v1/tasks/slow", DeadlineExceeded), ("/docs", DeadlineExceeded), ("/healthz", Unhealthy)]
)
async def test_silence_is_late_for_a_request_and_unhealthy_for_a_probe(path: str, error: type[OneBertError]) -> None:
    async def answer(request: wire.Request) -> None:
        raise TimeoutError

    with pytest.raises(error):
        await asked(relay_to(answer), "127.0.0.1", path)


@pytest.mark.parametrize(
    ("method", "path", "is_own"),
    [
        ("POST", "/v1/classify", True),
        ("POST", "/v1/tasks/tone@live/classify", True),
        ("POST", "/t/tone/v2/models/tone/versions/3/infer", True),
        ("POST", "/", True),
        ("GET", "/", False),
        ("GET", "/v1/models/tone", False),
        ("POST", "/v1/tasks/tone/examples", False),
        ("PUT", "/v1/tasks/tone/versions", False),
        ("POST", "/v1/classify/", False),
    ],
)
def test_questions_stay_with_the_front_end(method: str, path: str, is_own: bool) -> None:
    asked = formats_of([answering()]).match({"type": "http", "method": method, "path": path})
    assert (asked is not None) == is_own


def test_front_ends_hold_together_what_one_process_holds() -> None:
    settings, transport = Settings.model_construct(front_ends=8), cast(Any, SimpleNamespace())
    front = front_end.FrontEnd({}, transport, settings, cast(Any, Metrics()), Telemetry())
    untaken, incomplete = front.edge.untaken, Bodies(2**20, processes=8).incomplete
    assert untaken.fits("one", MAX_UNTAKEN_BYTES // 8)
    assert incomplete.fits("one", MAX_COMING_BYTES // 8)
    assert not (untaken.fits("one", MAX_UNTAKEN_BYTES // 8 + 1))
    assert not (incomplete.fits("one", MAX_COMING_BYTES // 8 + 1))


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/classify"), ("GET", "/v1/tasks")])
def test_a_token_is_checked_once_whoever_refuses_it(monkeypatch: pytest.MonkeyPatch, method: str, path: str) -> None:
    """The signature of one that is not valid costs the front end's event loop a while, and nobody remembers it."""
    checked, sent = [], []

    class Tokens:
        async def find(self, token: str, digest: bytes, address: str) -> None:
            checked.append(token)

    async def send(message: Message) -> None:
        sent.append(message)

    monkeypatch.setattr(front_end, "oidc_tokens", lambda oidc: Tokens())
    edge, nobody = Edge(cast(Any, None), Metrics()), cast(Any, None)
    config = front_end.config_of(edge, nobody, KeyRing({}, closed=True), Settings.model_construct())
    scope = {"type": "http", "method": method, "path": path, "headers": [(b"authorization", b"Bearer a.b.c")]}
    asyncio.run(cast(Any, config.app)(scope, nobody, send))
    assert checked == ["a.b.c"]
    assert sent[0]["status"] == 401
