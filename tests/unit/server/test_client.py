"""What the client library does with the answers of servers and gateways that refuse, wait, or are none."""

import asyncio
import inspect
import json
import time
from contextlib import closing, suppress
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import pytest

from both_clients import BOTH
from fake_servers import FakeServer, Handler
from onebert_server.client import AsyncClient, Client, TaskSummary
from onebert_server.client.exchange import MAX_REPETITIONS
from onebert_store.errors import ChangeUnknown, QueueFull, ServerUnreachable

FULL = {"title": "Too much", "status": 503, "code": "queue-full", "detail": "full", "type": "x", "instance": "y"}
TASKS = json.dumps({"tasks": [], "next": None}).encode()


def problem(**more):
    return json.dumps(FULL | more).encode()


class Replies(Handler):
    def answer(self):
        self.server.asked.append((time.monotonic(), self.path, dict(self.headers), self.body()))
        replies = self.server.replies
        if reply := replies.pop(0) if len(replies) > 1 else replies[0]:
            status, headers, content = reply
            self.reply(status, content, headers)

    do_GET = do_PUT = do_POST = do_DELETE = answer


class Gateway(FakeServer):
    """Answers with what a test wrote, in order and the last for ever, or cuts (None); keeps when what was asked."""

    def __init__(self, *replies):
        super().__init__(Replies)
        self.replies, self.asked = list(replies), []


@pytest.fixture(**BOTH)
def kind(request):
    return request.param


@pytest.fixture
def ask(kind):
    """Calls one method of either client."""

    def call(gateway, method, *arguments, timeout=30.0):
        with kind(gateway.url, timeout=timeout) as client:
            return getattr(client, method)(*arguments)

    return call


def test_a_server_that_says_when_to_come_back_is_asked_again_then(ask):
    with Gateway((503, {"Retry-After": "1"}, problem()), (200, {}, TASKS)) as gateway:
        assert ask(gateway, "tasks") == []
    (first, *_, headers, _), (second, *_, later, _) = gateway.asked
    assert second - first >= 1
    # The server is told how long the answer is waited for, and by then less is left.
    assert 30 >= float(headers["X-Request-Timeout"]) >= float(later["X-Request-Timeout"]) + 1


def test_a_date_to_come_back_is_understood(ask):
    soon = format_datetime(datetime.now(UTC) + timedelta(seconds=1), usegmt=True)
    with Gateway((429, {"Retry-After": soon}, b"<html>busy</html>"), (200, {}, TASKS)) as gateway:
        assert ask(gateway, "tasks") == []


def test_repetitions_are_bounded(ask):
    with Gateway((503, {"Retry-After": "0"}, problem())) as gateway, pytest.raises(QueueFull):
        ask(gateway, "classify", "mood", "x")
    assert len(gateway.asked) == MAX_REPETITIONS + 1


@pytest.mark.parametrize(
    ("status", "wait", "method", "arguments"),
    [
        (503, "0", "move_alias", ("mood", "live", 2, 1)),
        (503, "0", "delete_alias", ("mood", "live", 2)),
        (503, "0", "delete_version", ("mood", 2)),
        (503, "0", "create_key", ("ci", ["upload"], ["*"])),
        (503, "60", "classify", ("mood", "x")),
        (503, None, "tasks", ()),
        (429, None, "tasks", ()),
    ],
)
def test_what_is_not_sent_again(ask, status, wait, method, arguments):
    """What may not be done twice; and anything, where the server wants more time than the caller has, or says none."""
    headers = {} if wait is None else {"Retry-After": wait}
    with Gateway((status, headers, problem())) as gateway, pytest.raises(QueueFull) as caught:
        ask(gateway, method, *arguments)
    assert len(gateway.asked) == 1
    assert (caught.value.status, caught.value.retry_after) == (status, wait and int(wait))


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"<html>",
        b"[]",
        b"null",
        b'"x"',
        b'{"code": 1, "detail": 2}',
        b'{"code": "x"}',
        b"\xff",
        b'{"code": "\xff", "detail": "\xff", "tasks": [{"name": "\xff"}]}',
        b'{"code":"a","detail":"b","errors":7}',
    ],
)
@pytest.mark.parametrize("status", [200, 404, 502])
def test_what_no_onebert_server_answers_is_one_clear_error(ask, status, body):
    with Gateway((status, {}, body)) as gateway, pytest.raises(ServerUnreachable) as caught:
        ask(gateway, "tasks")
    assert "not one of a OneBERT server" in caught.value.detail


def test_a_server_that_does_not_answer_in_time(ask):
    gateway = Gateway((200, {}, TASKS))  # it listens, and nobody takes the connection
    with pytest.raises(ServerUnreachable, match="in time"):
        ask(gateway, "tasks", timeout=0.2)
    gateway.server_close()


def test_the_timeout_is_for_the_whole_answer():
    """The server sends a byte at a time, each of them early enough; it would be done after ten times the timeout."""

    async def trickle(reader, writer):
        with closing(writer), suppress(ConnectionError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
            for byte in TASKS.ljust(100):
                writer.write(bytes([byte]))
                await writer.drain()
                await asyncio.sleep(0.02)

    async def call():
        async with await asyncio.start_server(trickle, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            async with AsyncClient(f"http://127.0.0.1:{port}", timeout=0.2) as client:
                return await client.tasks()

    with pytest.raises(ServerUnreachable, match="in time"):
        asyncio.run(call())


def test_all_parts_of_a_call_have_one_version(ask):
    """`live` may move between two requests; one call is answered by one version all the same."""

    def answer(version, count):
        results = [{"label": "a", "score": 1.0, "scores": {"a": 1.0}, "tokens": 3, "truncated": False}] * count
        return 200, {}, json.dumps({"task": "mood", "version": version, "digest": "d", "results": results}).encode()

    with Gateway(answer(7, 64), answer(7, 6)) as gateway:
        assert {answer.version for answer in ask(gateway, "classify", "mood", ["x"] * 70)} == {7}
    assert [path for _, path, _, _ in gateway.asked] == ["/v1/tasks/mood/classify", "/v1/tasks/mood@7/classify"]


def test_a_server_that_takes_less_is_asked_for_less(ask):
    large = json.dumps(FULL | {"code": "too-large", "detail": "over 4096 bytes"}).encode()
    results = [{"label": "a", "score": 1.0, "scores": {"a": 1.0}, "tokens": 3, "truncated": False}] * 2
    fits = json.dumps({"task": "mood", "version": 7, "digest": "d", "results": results}).encode()
    with Gateway((413, {}, large), (200, {}, fits)) as gateway:
        assert len(ask(gateway, "classify", "mood", ["a", "b", "c", "d"])) == 4
    sent = [[each["text"] for each in json.loads(body)["inputs"]] for *_, body in gateway.asked]
    assert sent == [["a", "b", "c", "d"], ["a", "b"], ["c", "d"]]


def test_a_number_that_a_registry_does_not_know_is_forgotten(kind):
    unknown = 412, {}, problem(status=412, code="change-unknown")
    with Gateway((200, {"OneBERT-Seq": "7"}, TASKS), unknown, (200, {}, TASKS)) as gateway, kind(gateway.url) as client:
        client.tasks()
        with pytest.raises(ChangeUnknown):
            client.tasks()
        client.tasks()
        assert [headers.get("OneBERT-Min-Seq") for _, _, headers, _ in gateway.asked] == [None, "7", None]


def test_what_a_client_has_changed_it_asks_to_be_known(kind):
    """The highest number that any answer gave goes out with every later request of that client, and of no other."""
    replies = [(200, {"OneBERT-Seq": number}, TASKS) for number in ("7", "3", "x", "")]
    with Gateway(*replies, (200, {}, TASKS)) as gateway:
        with kind(gateway.url) as client:
            for _ in range(5):
                client.tasks()
        with kind(gateway.url) as other:
            other.tasks()
        assert [headers.get("OneBERT-Min-Seq") for _, _, headers, _ in gateway.asked] == [None, *["7"] * 4, None]


def test_only_repeatable_requests_are_sent_again(ask):
    with Gateway(None, None, (200, {}, TASKS)) as gateway:
        assert ask(gateway, "tasks") == []
    assert len(gateway.asked) == 3
    for asked, times in ((["tasks"], 3), (["delete_task", "task"], 1)):
        with Gateway(None) as gateway, pytest.raises(ServerUnreachable):
            ask(gateway, *asked)
        assert len(gateway.asked) == times


def test_both_clients_have_the_same_methods_and_say_what_they_give():
    def methods(kind):
        return {name: method for name, method in inspect.getmembers(kind, callable) if not name.startswith("_")}

    plain, awaited = methods(Client), methods(AsyncClient)
    assert plain.keys() == awaited.keys()
    for name, method in plain.items():
        ours, theirs = inspect.signature(method), inspect.signature(awaited[name])
        assert ours == theirs, name
        assert "Coroutine" not in str(ours)
        assert method.__doc__
        assert method.__doc__ == awaited[name].__doc__
    assert inspect.signature(Client.tasks).return_annotation == list[TaskSummary]
