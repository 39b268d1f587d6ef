"""Forwarded requests: a front end does not give up an app that takes its time, and forwards so many at once."""

import asyncio
import json
import os
import socket
import time
from contextlib import suppress
from pathlib import Path
from typing import cast

import pytest
from starlette.types import Message, Receive, Scope, Send

from onebert_server.access.keys import KeyRing
from onebert_server.answering.answers import Answerer
from onebert_server.edge import Edge
from onebert_server.facades.routes import answering
from onebert_server.front_ends.forwarding import MAX_FORWARDED, Forwarding, forwarded_to
from onebert_server.front_ends.keeper import START_TIMEOUT, remove_left_over
from onebert_server.http.auth import ApiKeys
from onebert_server.http.formats import Formats, formats_of
from onebert_server.http.head import HEAD, Head
from onebert_server.http.pipeline import REFUSED, Dispatch, Pipeline
from onebert_server.http.problems import FORM_OF, problem_response, problems_alone
from onebert_server.metrics import Metrics
from onebert_server.settings import Settings

PATIENCE = 1.0
SCOPE = {
    "type": "http",
    "asgi": {"version": "3.0"},
    "http_version": "1.1",
    "server": ("127.0.0.1", 8000),
    "client": ("127.0.0.1", 50000),
    "scheme": "http",
    "method": "PUT",
    "root_path": "",
    "path": "/v1/tasks/slow",
    "raw_path": b"/v1/tasks/slow",
    "query_string": b"",
}
NONE = Formats([])


def request(*fields: tuple[bytes, bytes], **changes: object) -> Scope:
    """A request with these header fields besides its host."""
    head = Head([(b"host", b"localhost"), *fields])
    state = {HEAD: head, "request_id": "request", FORM_OF: problems_alone}
    return {**SCOPE, "headers": head.raw, "state": state, **changes}


async def own(scope: Scope, receive: Receive, send: Send) -> None:
    """The front end's own app, which none of these requests asks: it refuses what is refused."""
    await problem_response(scope, scope["state"][REFUSED])(scope, receive, send)


class Sent(list[Message]):
    """Keeps what an app sends."""

    async def __call__(self, message: Message) -> None:
        self.append(message)


async def respond(send: Send, status: int, body: bytes) -> None:
    await send({"type": "http.response.start", "status": status, "headers": []})
    await send({"type": "http.response.body", "body": body})


async def receive_nothing() -> Message:
    return await asyncio.get_running_loop().create_future()


async def slow_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Takes longer than a front end's patience, and leaves its event loop free."""
    ends = time.monotonic() + 2 * PATIENCE
    while time.monotonic() < ends:
        await asyncio.sleep(0)
    await respond(send, 201, b"stored")


async def test_an_app_that_takes_its_time_is_waited_for_beyond_the_patience_with_its_process(tmp_path: Path) -> None:
    """As where an upload waits for its turn; one that hangs is in tests/integration/http/test_front_ends.py."""
    path, sent = str(tmp_path / "app"), Sent()

    async with await asyncio.start_unix_server(forwarded_to(slow_app, PATIENCE), path):
        await Forwarding(own, NONE, path, ApiKeys(KeyRing({})), PATIENCE)(request(), receive_nothing, sent)
    assert [message.get("status") or message["body"] for message in sent] == [201, b"stored"]


@pytest.mark.parametrize(("hangs", "code"), [(True, "unhealthy"), (False, "shutting-down")])
async def test_a_process_that_hangs_is_told_from_one_that_is_gone(tmp_path: Path, hangs: bool, code: str) -> None:
    path, patience, refused, ended = str(tmp_path / "app"), 0.01 if hangs else 60.0, [], asyncio.Event()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(-1 if hangs else 1)
        writer.close()
        with suppress(ConnectionError):
            await writer.wait_closed()
        ended.set()

    async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
        refused.append(scope["state"][REFUSED])

    async with await asyncio.start_unix_server(serve, path):
        await Forwarding(refuse, NONE, path, ApiKeys(KeyRing({})), patience)(request(), receive_nothing, Sent())
        await ended.wait()
    assert [(error.status, error.code) for error in refused] == [(503, code)]


ANSWER = 300_000 * b"a"


async def hasty_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Asks for the body, and has answered before it comes."""
    asking = asyncio.create_task(receive())
    await asyncio.sleep(0)
    await respond(send, 200, ANSWER)
    asking.cancel()


def test_an_answer_arrives_whole_where_the_app_did_not_wait_for_the_body_that_it_asked_for(tmp_path: Path) -> None:
    """The body lies unread in a connection that closes, which a kernel then resets."""
    path = str(tmp_path / "app")

    async def ask() -> bytes:
        sent = Sent()

        async def receive() -> Message:
            return {"type": "http.request", "body": 1_000_000 * b"q", "more_body": False}

        await Forwarding(own, NONE, path, ApiKeys(KeyRing({})), PATIENCE)(request(), receive, sent)
        return b"".join(message.get("body", b"") for message in sent)

    async def ask_often() -> list[bytes]:
        async with await asyncio.start_unix_server(forwarded_to(hasty_app, PATIENCE), path):
            return [await ask() for _ in range(50)]

    assert asyncio.run(ask_often()) == 50 * [ANSWER]


@pytest.mark.parametrize(("path", "others"), [("/v1/tasks/slow", ["/docs"]), ("/docs", ["/v1/tasks/slow"])])
async def test_who_forwards_much_leaves_room_for_others_and_all_of_it_for_health(
    tmp_path: Path, path: str, others: list[str]
) -> None:
    """As where one tenant's bodies stall, or strangers read the documentation slowly."""
    socket = str(tmp_path / "app")
    share = MAX_FORWARDED // 2

    all_there, opened = asyncio.Event(), asyncio.Event()
    waiting = 0

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        nonlocal waiting
        waiting += 1
        if waiting == share:
            all_there.set()
        if scope["query_string"] == b"slow":
            await opened.wait()
        await respond(send, 200, b"{}")

    async with await asyncio.start_unix_server(forwarded_to(app), socket, backlog=MAX_FORWARDED):
        forwarding = Forwarding(own, NONE, socket, ApiKeys(KeyRing({})))

        async def ask(address: str, path: str, query: bytes = b"") -> tuple[int, str | None]:
            sent = Sent()

            asked = request(client=(address, 50000), path=path, query_string=query)
            await forwarding(asked, receive_nothing, sent)
            return sent[0]["status"], json.loads(sent[1]["body"]).get("code")

        asking = [asyncio.create_task(ask("127.0.0.1", path, b"slow")) for _ in range(share)]
        async with asyncio.timeout(60):
            await all_there.wait()
            assert await ask("127.0.0.1", path) == (503, "queue-full")
            assert await ask("127.0.0.2", path) == (200, None)
            for other in ("/healthz", "/startupz", "/readyz", *others):
                assert await ask("127.0.0.1", other) == (200, None)
            opened.set()
            assert await asyncio.gather(*asking) == [(200, None)] * share
            assert await ask("127.0.0.1", path) == (200, None)


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
async def test_questions_stay_with_the_front_end(tmp_path: Path, method: str, path: str, is_own: bool) -> None:
    took: list[bool] = []

    async def answers(scope: Scope, receive: Receive, send: Send) -> None:
        took.append(True)

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        took.append(False)
        await respond(send, 200, b"")

    socket = str(tmp_path / "app")
    async with await asyncio.start_unix_server(forwarded_to(app), socket):
        forwarding = Forwarding(answers, formats_of([answering()]), socket, ApiKeys(KeyRing({})))
        await forwarding(request(method=method, path=path), receive_nothing, Sent())
    assert took == [is_own]


@pytest.mark.parametrize("path", ["/v1/classify", "/v1/tasks"])
def test_a_token_is_checked_once_whoever_refuses_it(tmp_path: Path, path: str) -> None:
    """The signature of one that is not valid costs the front end's event loop a while, and nobody remembers it."""
    checked, sent = [], Sent()

    class Tokens:
        async def find(self, token: str, digest: bytes) -> None:
            checked.append(token)

    keys, formats = ApiKeys(KeyRing({}, closed=True), Tokens()), formats_of([answering()])
    edge = Edge(cast(Answerer, None), Metrics())
    pipeline = Pipeline(edge, Dispatch(edge, formats, own, keys, Settings.model_construct()))
    app = Forwarding(pipeline, formats, str(tmp_path / "nobody"), keys)
    scope = request((b"authorization", b"Bearer a.b.c"), method="POST" if path == "/v1/classify" else "GET", path=path)
    asyncio.run(app(scope, receive_nothing, sent))
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
