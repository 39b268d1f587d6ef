"""Forwarded requests: the same bytes as from the process itself, and what a client hears when that does not answer."""

import asyncio
import json
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onebert_server.access.keys import KeyRing
from onebert_server.answering.edge import Edge
from onebert_server.facades.routes import answering
from onebert_server.http.auth import ApiKeys
from onebert_server.http.body import Bodies
from onebert_server.http.connection.refusals import REFUSAL
from onebert_server.http.formats import formats_of
from onebert_server.http.head import HEAD, Head
from onebert_server.limits import MAX_COMING_BYTES, MAX_UNTAKEN_BYTES
from onebert_server.remote.transport import SILENT
from onebert_server.remote.unix.http import forward, forwarded
from onebert_server.run import front_end
from onebert_server.settings import Settings
from onebert_server.telemetry.metrics import Metrics
from onebert_server.telemetry.telemetry import Telemetry
from onebert_store.errors import ShuttingDown
from remote_engine import protocols

HOST = b"Host: localhost\r\nConnection: close\r\n"
LARGE = 300_000 * b"a"


def never() -> float:
    """When a process that stands still was heard last."""
    return -math.inf


@asynccontextmanager
async def connecting(app: ASGIApp, path: str) -> AsyncIterator[Any]:
    """Connects to a server with this app, or to a front end before it."""
    loop = asyncio.get_running_loop()
    writers: list[asyncio.StreamWriter] = []

    async def front(scope: Scope, receive: Receive, send: Send) -> None:
        with suppress(HTTPException):
            await forward(path, scope, receive, send, math.inf, time.monotonic)

    async with (
        await loop.create_unix_server(protocols(forwarded(app)), path),
        await loop.create_server(protocols(app), "127.0.0.1", 0) as engine,
        await loop.create_server(protocols(front), "127.0.0.1", 0) as before,
    ):

        async def connect(through: bool) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
            where = (before if through else engine).sockets[0].getsockname()
            reader, writer = await asyncio.open_connection(*where)
            writers.append(writer)
            return reader, writer

        yield connect
        for writer in writers:
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()


async def told(scope: Scope, receive: Receive, send: Send) -> None:
    """Answers by the path; `/told` says what it was asked."""
    kind, body, more = scope["path"].partition("/told")[0][1:], b"", scope["path"] != "/unread"
    while more:
        message = await receive()
        body, more = body + message.get("body", b""), message.get("more_body", False)
    fields = [[name.decode(), value.decode()] for name, value in scope["headers"]]
    known = {name: scope[name] for name in ("method", "path", "http_version", "scheme")}
    query, raw = scope["query_string"].decode(), scope["raw_path"].decode()
    text = json.dumps([known, query, raw, scope["client"][0], fields, len(body)]).encode()
    status, length = {"/none": (204, 0), "/same": (304, None)}.get(scope["path"], (200, len(text)))
    headers = [(b"x-one", b"1"), (b"x-one", b"2")]
    if scope["path"] == "/large":
        text, length = LARGE, len(LARGE)
    if scope["path"] not in ("/chunks", "/same"):
        headers.append((b"content-length", b"%d" % cast(int, length)))
    if kind == "closes":
        headers.append((b"connection", b"close"))
    await send({"type": "http.response.start", "status": status, "headers": headers})
    for _ in range(2 if scope["path"] == "/chunks" else 0):
        await send({"type": "http.response.body", "body": text, "more_body": True})
    await send({"type": "http.response.body", "body": b"" if status > 200 else text})


REQUESTS = {
    "a path": b"GET /told HTTP/1.1\r\n" + HOST,
    "a query": b"GET /told?a=%2F&b HTTP/1.1\r\n" + HOST,
    "escapes": b"GET /told/%2F%25/a%20b HTTP/1.1\r\n" + HOST,
    "two slashes": b"GET //told HTTP/1.1\r\n" + HOST,
    "an address": b"GET http://localhost/told HTTP/1.1\r\n" + HOST,
    "an old client": b"GET /told HTTP/1.0\r\n",
    "a head alone": b"HEAD /told HTTP/1.1\r\n" + HOST,
    "a head alone of chunks": b"HEAD /chunks HTTP/1.1\r\n" + HOST,
    "no content": b"DELETE /none HTTP/1.1\r\n" + HOST,
    "not modified": b"GET /same HTTP/1.1\r\n" + HOST,
    "a large answer": b"GET /large HTTP/1.1\r\n" + HOST,
    "an answer in chunks": b"GET /chunks HTTP/1.1\r\n" + HOST,
    "fields twice": b"GET /told HTTP/1.1\r\nA: 1\r\nb:2\r\nA:  3\r\n" + HOST,
    "an upgrade": b"GET /told HTTP/1.1\r\nHost: a\r\nConnection: Upgrade, close\r\nUpgrade: h2c\r\n",
    "a body": b"PUT /told HTTP/1.1\r\nContent-Length: 5\r\n" + HOST + b"\r\nabcde",
    "chunks": b"PUT /told HTTP/1.1\r\nTransfer-Encoding: chunked\r\n" + HOST + b"\r\n3\r\nabc\r\n2\r\nde\r\n0\r\n\r\n",
    "a large body": b"PUT /told HTTP/1.1\r\nContent-Length: 300000\r\n" + HOST + b"\r\n" + LARGE,
    "a large body in chunks": b"PUT /told HTTP/1.1\r\nTransfer-Encoding: chunked\r\n"
    + HOST
    + b"\r\n493e0\r\n%b\r\n0\r\n\r\n" % LARGE,
    "a body that is expected": b"PUT /told HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n"
    + HOST
    + b"\r\nabcde",
    "an unread body": b"PUT /unread HTTP/1.1\r\nContent-Length: 300000\r\n" + HOST + b"\r\n" + LARGE,
    "an unread body that was expected": b"PUT /unread HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 5\r\n" + HOST,
    "as many fields as may be": b"GET /told HTTP/1.1\r\n" + b"".join(b"a: %d\r\n" % n for n in range(98)) + HOST,
}


def without_date(answer: bytes) -> bytes:
    return b"\r\n".join(line for line in answer.split(b"\r\n") if not line.lower().startswith(b"date:"))


@pytest.mark.parametrize("request_bytes", REQUESTS.values(), ids=REQUESTS)
async def test_the_bytes_are_those_of_the_process_itself(tmp_path: Path, request_bytes: bytes) -> None:
    if b"\r\n\r\n" not in request_bytes:
        request_bytes += b"\r\n"

    async def answer(through: bool) -> bytes:
        reader, writer = await connect(through)
        writer.write(request_bytes)
        return without_date(await reader.read())

    async with connecting(told, str(tmp_path / "control")) as connect:
        direct = await answer(False)
        assert direct.startswith((b"HTTP/1.1 ", b"HTTP/1.0 "))
        assert await answer(True) == direct


async def test_an_app_that_watches_its_client_sees_that_it_has_left(tmp_path: Path) -> None:
    asked, left = asyncio.Event(), asyncio.Event()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        assert not (await receive())["more_body"]
        asked.set()
        assert (await receive())["type"] == "http.disconnect"
        left.set()

    async with connecting(app, str(tmp_path / "control")) as connect:
        _, writer = await connect(True)
        writer.write(b"GET /told HTTP/1.1\r\n%b\r\n" % HOST)
        await asked.wait()
        writer.close()
        await left.wait()


def scope_of(method: str = "PUT", **fields: bytes) -> Scope:
    headers = [(b"host", b"localhost"), *((name.replace("_", "-").encode(), value) for name, value in fields.items())]
    scope = {"type": "http", "http_version": "1.1", "method": method, "client": ("127.0.0.1", 1), "query_string": b""}
    return {**scope, "path": "/told", "raw_path": b"/told", "headers": headers, "state": {HEAD: Head(headers)}}


async def forward_to(
    serve: Any, path: str, *messages: Message, seconds: float = 60.0, scope: Scope | None = None
) -> list[Message]:
    """What a front end sends of the answer of a process that `serve`s one connection; its body comes in messages.

    The protocol has set the `state` of a message when it comes.
    """
    given, sent, ended = iter(messages), list[Message](), asyncio.Event()
    scope = scope or scope_of()

    async def receive() -> Message:
        message = next(given, None) or await asyncio.get_running_loop().create_future()
        scope["state"].update(message.get("state", {}))
        return message

    async def send(message: Message) -> None:
        sent.append(message)

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            await serve(reader, writer)
            writer.close()
            with suppress(ConnectionError):
                await writer.wait_closed()
        finally:
            ended.set()

    async with await asyncio.start_unix_server(served, path):
        try:
            await forward(path, scope, receive, send, time.monotonic() + seconds, never)
        finally:
            await ended.wait()
    return sent


@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize("hangs", [False, True])
async def test_a_process_that_hangs_is_told_from_one_that_is_gone(tmp_path: Path, hangs: bool, begun: bool) -> None:
    """An answer that has begun can only be cut."""

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if begun:
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 5\r\n\r\nab")
        if hangs:
            await reader.read(-1)

    with pytest.raises(ConnectionError if begun else TimeoutError if hangs else ShuttingDown):
        await forward_to(serve, str(tmp_path / "control"), seconds=0.01 if hangs else 60.0)


async def test_a_busy_process_is_waited_for_beyond_the_deadline(tmp_path: Path) -> None:
    """As where an upload waits for its turn; one that hangs is in tests/integration/http/test_front_ends.py."""
    over, sent = asyncio.Event(), list[Message]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        await over.wait()
        await told(scope, receive, send)

    async def receive() -> Message:
        return {"type": "http.request"} if not over.is_set() else await asyncio.get_running_loop().create_future()

    def heard() -> float:
        over.set()
        return time.monotonic()

    async def send(message: Message) -> None:
        sent.append(message)

    path = str(tmp_path / "control")
    async with await asyncio.get_running_loop().create_unix_server(protocols(forwarded(app)), path):
        await forward(path, scope_of("GET"), receive, send, time.monotonic() - SILENT, heard)
    assert sent[0]["status"] == 200


UNREADABLE = {"type": "http.request", "state": {REFUSAL: (400, "the body's framing is broken")}}


async def test_an_unreadable_body_is_not_forwarded(tmp_path: Path) -> None:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            assert await reader.read() == b"5\r\nfirst\r\n"

    part = {"type": "http.request", "body": b"first", "more_body": True}
    scope = scope_of(transfer_encoding=b"chunked")
    with pytest.raises(HTTPException, match="framing is broken") as refused:
        await forward_to(serve, str(tmp_path / "control"), part, UNREADABLE, scope=scope)
    assert (refused.value.status_code, refused.value.headers) == (400, {"Connection": "close"})


def forwarding(transport: Any, **settings: Any) -> ASGIApp:
    """The app of a front end without keys, or with those of settings."""
    made = Settings.model_construct(**settings)
    ring = KeyRing(made.api_keys, closed=made.oidc is not None)
    return cast(ASGIApp, front_end.config_of(Edge(cast(Any, None), Metrics()), transport, ring, made).app)


async def asked(
    app: ASGIApp, method: str, path: str, *headers: tuple[bytes, bytes]
) -> tuple[int, dict[bytes, bytes], Any]:
    """The status, fields and code of the response to a request."""
    sent: list[Message] = []

    async def send(message: Message) -> None:
        sent.append(message)

    fields = [(b"host", b"localhost"), *headers]
    scope = {**scope_of(method), "path": path, "headers": fields, "state": {HEAD: Head(fields)}}
    await app(scope, cast(Any, None), send)
    return sent[0]["status"], dict(sent[0]["headers"]), json.loads(sent[1]["body"])["code"]


@pytest.mark.parametrize(
    ("path", "answer"),
    [
        ("/v1/tasks", (504, "deadline-exceeded")),
        ("/docs", (504, "deadline-exceeded")),
        ("/healthz", (503, "unhealthy")),
    ],
)
async def test_silence_is_late_for_a_request_and_unhealthy_for_a_probe(path: str, answer: tuple[int, str]) -> None:
    class Transport:
        async def forward(self, scope: Scope, receive: Receive, send: Send, deadline: float) -> None:
            raise TimeoutError

    origin = (b"origin", b"https://page")
    status, fields, code = await asked(forwarding(Transport(), cors_origins=["https://page"]), "GET", path, origin)
    assert (status, code) == answer
    assert fields[b"access-control-allow-origin"] == b"https://page"


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
    checked = []

    class Tokens:
        async def find(self, token: str, digest: bytes, address: str) -> None:
            checked.append(token)

    monkeypatch.setattr(
        front_end, "api_keys", lambda ring, oidc: ApiKeys(KeyRing({}, closed=True), cast(Any, Tokens()))
    )
    status, _, _ = asyncio.run(asked(forwarding(None), method, path, (b"authorization", b"Bearer a.b.c")))
    assert (status, checked) == (401, ["a.b.c"])
