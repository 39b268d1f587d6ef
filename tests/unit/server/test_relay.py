"""Relayed requests: an app that takes its time is waited for, and so many requests and bytes are under way at once."""

import asyncio
import os
import socket
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onebert_server.access.context import Context
from onebert_server.access.keys import KeyRing
from onebert_server.access.principal import root
from onebert_server.answering.edge import Edge
from onebert_server.facades.routes import answering
from onebert_server.http.body import BODY, Bodies, Body
from onebert_server.http.formats import formats_of
from onebert_server.http.head import HEAD, Head
from onebert_server.http.problems import problems_alone
from onebert_server.remote import relay, wire
from onebert_server.remote.relay import MAX_RELAYED, Relay
from onebert_server.remote.relayed import Relayed
from onebert_server.remote.unix.desk import FrontDesk, Served
from onebert_server.remote.unix.keeper import START_TIMEOUT, remove_left_over
from onebert_server.remote.unix.transport import UnixTransport
from onebert_server.run import front_end
from onebert_server.settings import Settings
from onebert_server.telemetry.metrics import Metrics
from onebert_store.errors import OneBertError, QueueFull

PATIENCE = 1.0
REQUEST = wire.Request(
    {"type": "http", "method": "PUT", "path": "/v1/tasks/slow"},
    [],
    b"",
    wire.caller(root("somebody")),
    "an-id",
    60.0,
    0,
)


async def slow_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Takes longer than a front end's patience, and leaves its event loop free."""
    ends = time.monotonic() + 2 * PATIENCE
    while time.monotonic() < ends:
        await asyncio.sleep(0)
    await send({"type": "http.response.start", "status": 201, "headers": []})
    await send({"type": "http.response.body", "body": b"stored"})


async def broken_app(scope: Scope, receive: Receive, send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    raise ZeroDivisionError


def relayed(app: ASGIApp, path: str) -> wire.Response:
    """What an app behind a socket answers."""
    keeper = SimpleNamespace(lost=lambda desk: None)
    backend = cast(Any, None)
    answers = Relayed(app, problems_alone, Settings.model_construct())
    served = Served(backend, answers, Metrics(), KeyRing({}), patience=PATIENCE)

    async def ask() -> wire.Response:
        async with await asyncio.get_running_loop().create_unix_server(
            lambda: FrontDesk(served, cast(Any, keeper)).channel, path
        ):
            return await UnixTransport(path).relay(REQUEST, PATIENCE)

    return asyncio.run(ask())


def test_an_app_that_takes_its_time_is_waited_for_beyond_the_patience_with_its_process(tmp_path: Path) -> None:
    """As where an upload waits for its turn; one that hangs is in tests/integration/http/test_front_ends.py."""
    answer = relayed(slow_app, str(tmp_path / "engine"))
    assert (answer.status, answer.body) == (201, b"stored")


def test_an_app_that_fails_after_its_head_is_an_internal_error(tmp_path: Path) -> None:
    answer = relayed(broken_app, str(tmp_path / "engine"))
    assert (answer.status, answer.problem) == (500, "internal")
    assert b"an-id" in answer.body


@pytest.mark.parametrize(("hangs", "code"), [(True, "unhealthy"), (False, "shutting-down")])
def test_a_process_that_hangs_is_told_from_one_that_is_gone(tmp_path: Path, hangs: bool, code: str) -> None:
    path, patience, ended = str(tmp_path / "engine"), 0.01 if hangs else 60.0, asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1 if hangs else 1)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    async def ask() -> None:
        async with await asyncio.start_unix_server(serve, path):
            with pytest.raises(OneBertError) as refused:
                await UnixTransport(path).relay(REQUEST, patience)
            await ended.wait()
        assert (refused.value.status, refused.value.code) == (503, code)

    asyncio.run(ask())


def relay_to(answer: Callable[[wire.Request], Awaitable[wire.Response]]) -> Relay:
    """A relay whose other process answers like this."""

    class Transport:
        full = False

        async def relay(self, request: wire.Request, patience: float) -> wire.Response:
            return await answer(request)

    edge = Edge(cast(Any, None), Metrics())
    settings = Settings.model_construct(max_upload_bytes=100)
    return Relay(cast(Any, None), [], edge, cast(Any, Transport()), settings)


async def asked(app: Relay, address: str, path: str, *messages: Message) -> list[Message]:
    """Sends a request whose body comes in these messages; returns the response's."""
    sent: list[Message] = []
    given = iter(messages)

    async def receive() -> Message:
        return next(given)

    async def send(message: Message) -> None:
        sent.append(message)

    context = Context(root(address), time.monotonic() + 60, time.monotonic(), "an-id")
    scope: Scope = {**dict.fromkeys(relay.SCOPE), "type": "http", "method": "POST", "path": path, "headers": []}
    scope["state"] = {HEAD: Head(), "context": context}
    scope["state"][BODY] = Body(scope, receive, context, Bodies(100, 60))
    await app(scope, receive, send)
    return sent


def part(body: bytes, more: bool = True) -> Message:
    return {"type": "http.request", "body": body, "more_body": more}


@pytest.mark.parametrize(("path", "others"), [("/v1/tasks/slow", ["/docs"]), ("/docs", ["/v1/tasks/slow"])])
def test_who_relays_much_leaves_room_for_others_and_all_of_it_for_health(path: str, others: list[str]) -> None:
    """As where one tenant's uploads wait, or strangers read the documentation slowly."""
    share = MAX_RELAYED // 2

    async def run() -> None:
        opened = asyncio.Event()

        async def answer(request: wire.Request) -> wire.Response:
            if request.body == b"slow":
                await opened.wait()
            return wire.Response(200, [], b"{}", "/", None)

        app = relay_to(answer)
        waiting = [asyncio.create_task(asked(app, "127.0.0.1", path, part(b"slow", False))) for _ in range(share)]
        await asyncio.sleep(0)
        with pytest.raises(QueueFull):
            await asked(app, "127.0.0.1", path, part(b"", False))
        for address, other in [("127.0.0.2", path), *(("127.0.0.1", one) for one in ("/healthz", "/readyz", *others))]:
            assert (await asked(app, address, other, part(b"", False)))[0]["status"] == 200
        opened.set()
        assert [one[0]["status"] for one in await asyncio.gather(*waiting)] == [200] * share
        assert (await asked(app, "127.0.0.1", path, part(b"", False)))[0]["status"] == 200

    asyncio.run(run())


def test_a_relayed_body_is_held_until_its_answer_has_come(monkeypatch: pytest.MonkeyPatch) -> None:
    """While it comes, while the other process answers, and no longer, whatever ends it."""
    monkeypatch.setattr(relay, "MAX_HELD_BYTES", 40)
    held = []

    async def answer(request: wire.Request) -> wire.Response:
        held.append(relayed._held.total)
        if request.body.endswith(b"fail"):
            raise ZeroDivisionError
        return wire.Response(200, [], request.body, "/", None)

    relayed = relay_to(answer)

    def ask(*messages: Message) -> list[Message]:
        return asyncio.run(asked(relayed, "somebody", "/x", *messages))

    start, body = ask(part(b"0123456789"), part(b"rest", False))
    assert [start["status"], body["body"]] == [200, b"0123456789rest"]
    with pytest.raises(ZeroDivisionError):
        ask(part(b"", True), part(b"fail", False))
    assert held == [14, 4]
    with pytest.raises(QueueFull):
        ask(part(b"0" * 15), part(b"0" * 15))
    with pytest.raises(ClientDisconnect):
        ask(part(b"01234"), {"type": "http.disconnect"})
    assert relayed._held.total == 0


@pytest.mark.parametrize(
    ("method", "path", "is_own"),
    [
        ("POST", "/v1/classify", True),
        ("POST", "/v1/tasks/tone@live/classify", True),
        ("POST", "/t/tone/v2/models/tone/versions/3/infer", True),
        ("POST", "/", True),
        ("GET", "/", False),
        ("GET", "/v1/models/tone", False),
        ("POST", "/v1/tasks/tone/rename", False),
        ("PUT", "/v1/tasks/tone/versions", False),
        ("POST", "/v1/classify/", False),
    ],
)
def test_questions_stay_with_the_front_end(method: str, path: str, is_own: bool) -> None:
    asked = formats_of([answering()]).asked({"type": "http", "method": method, "path": path})
    assert (asked is not None) == is_own


@pytest.mark.parametrize(("method", "path"), [("POST", "/v1/classify"), ("GET", "/v1/tasks")])
def test_a_token_is_checked_once_whoever_refuses_it(monkeypatch: pytest.MonkeyPatch, method: str, path: str) -> None:
    """The signature of one that is not valid costs the front end's event loop a while, and nobody remembers it."""
    checked, sent = [], []

    class Tokens:
        async def find(self, token: str, digest: bytes) -> None:
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


def test_folders_of_servers_that_were_killed_are_removed_and_no_others(tmp_path: Path) -> None:
    for name in ("onebert-killed", "onebert-alive", "onebert-starts", "other"):
        (tmp_path / name).mkdir()
    with socket.socket(socket.AF_UNIX) as alive:
        alive.bind(str(tmp_path / "onebert-alive" / "engine"))
        alive.listen()
        for name in ("onebert-killed", "onebert-starts", "other"):
            with socket.socket(socket.AF_UNIX) as killed:
                killed.bind(str(tmp_path / name / "engine"))
        before = time.time() - START_TIMEOUT - 1
        for name in ("onebert-killed", "onebert-alive", "other"):
            os.utime(tmp_path / name / "engine", (before, before))
        remove_left_over(tmp_path)
    assert {path.name for path in tmp_path.iterdir()} == {"onebert-alive", "onebert-starts", "other"}
