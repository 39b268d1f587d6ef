"""Webhooks of a replica in this process: signed events in order, once, through failures of the receiver."""

import hashlib
import logging
import re
import time
from contextlib import ExitStack
from datetime import UTC, datetime
from pathlib import Path

import httpx
import pytest

from needs import needs
from onebert_server.extensions.webhooks import sender
from onebert_server.extensions.webhooks.message import WebhookMessage, signed
from onebert_server.settings import load_settings
from onebert_store.errors import InvalidSettings
from receivers import KEY, SECRET, Receiver
from runtimes import ask, get, opened, upload
from servers import Task, wait_until

PAGE = Path(__file__).parents[3] / "docs/guide/webhooks.md"


@pytest.fixture(autouse=True)
def hurried(monkeypatch):
    monkeypatch.setattr(sender, "POLL_EVERY", 0.01)
    monkeypatch.setattr(sender, "FIRST_PAUSE", 0.01)
    monkeypatch.setattr(sender, "LONGEST_PAUSE", 0.02)


@pytest.fixture
def receiver():
    with Receiver() as made:
        yield made


def move(runtime, version, at, **body):
    path, condition = "/v1/tasks/tone/aliases/live", {"If-Match": f'"{at}"'}
    return ask(runtime, "PUT", path, json={"version": version} | body, headers=condition)


def counted(runtime, result):
    match = re.search(rf'^onebert_webhook_total{{result="{result}"}} (.+)', get(runtime, "/metrics").text, re.MULTILINE)
    return float(match[1]) if match else 0.0


def test_moves_come_in_order_with_their_facts(tmp_path, receiver):
    with opened(tmp_path) as runtime:
        upload(runtime, "before", Task(seed=1))
    with opened(tmp_path, **receiver.settings) as runtime:
        upload(runtime, "tone", Task(seed=1))
        upload(runtime, "tone", Task(seed=2))
        assert move(runtime, 2, 1, force=True, message="because").is_success
        path, condition = "/v1/tasks/tone/aliases/next", {"If-None-Match": "*"}
        split = {"split": {"1": 90, "2": 10}}
        assert ask(runtime, "PUT", path, json=split, headers=condition).is_success
        wait_until(lambda: len(receiver.taken) == 3)
        assert receiver.moves == [("tone", "live", 1, 2), ("tone", "live", 2, 4), ("tone", "next", 1, 5)]
        assert len({number for number, _ in receiver.taken}) == 3
        _, moved = receiver.taken[1]
        facts = {"before": 1, "what": "1 → 2", "reason": "because", "past_gate": True, "failed": [], "target": None}
        assert moved["type"] == "alias.moved"
        assert {name: moved["data"][name] for name in facts} == facts
        shown = get(runtime, "/v1/tasks/tone/aliases/next").json()["target"]
        assert {name: receiver.taken[2][1]["data"]["target"][name] for name in shown} == shown
        wait_until(lambda: counted(runtime, "sent") == 3)


def test_a_receiver_that_was_down_gets_everything_once_it_is_back(tmp_path, receiver, caplog):
    receiver.status = 503
    with caplog.at_level(logging.INFO), opened(tmp_path, **receiver.settings) as runtime:
        upload(runtime, "tone", Task(seed=1))
        wait_until(lambda: len(receiver.refused) > 2)
        upload(runtime, "tune", Task(seed=1))
        assert {number for number, _ in receiver.refused} == {receiver.refused[0][0]}
        receiver.status = 200
        wait_until(lambda: len(receiver.taken) == 2)
        assert receiver.moves == [("tone", "live", 1, 1), ("tune", "live", 1, 2)]
        assert receiver.taken[0] == receiver.refused[0]
        wait_until(lambda: counted(runtime, "failed") == len(receiver.refused))
    messages = [record.getMessage() for record in caplog.records if record.name == "onebert.webhooks"]
    assert messages == ["the receiver takes no webhooks, which wait: status 503", "the receiver takes webhooks again"]
    assert KEY not in caplog.text


def test_deletions_come_between_the_moves_in_order(tmp_path, receiver):
    with opened(tmp_path, **receiver.settings) as runtime:
        for seed in (1, 2, 3):
            upload(runtime, "tone", Task(seed=seed))
        path, at = "/v1/tasks/tone/aliases/next", {"If-Match": '"2"'}
        assert ask(runtime, "PUT", path, json={"version": 2}, headers={"If-None-Match": "*"}).is_success
        assert ask(runtime, "DELETE", path, headers=at).is_success
        assert ask(runtime, "DELETE", "/v1/tasks/tone/versions/2").is_success
        assert ask(runtime, "DELETE", "/v1/tasks/tone").is_success
        upload(runtime, "tone", Task(seed=4))
        # Changes of other things are none of the receiver's.
        assert ask(runtime, "POST", "/v1/keys", json={"name": "ci", "scopes": ["admin"], "tasks": ["*"]}).is_success
        wait_until(lambda: len(receiver.taken) == 6)
    numbers = [body["data"].pop("change") for _, body in receiver.taken]
    assert numbers == sorted(set(numbers))
    assert all(body["data"].pop("principal") for _, body in receiver.taken)
    assert not any(body["data"].pop("past_gate", False) for _, body in receiver.taken)
    assert [(body["type"], {k: v for k, v in body["data"].items() if v is not None}) for _, body in receiver.taken] == [
        ("alias.moved", {"task": "tone", "alias": "live", "version": 1, "what": "new → 1"}),
        ("alias.moved", {"task": "tone", "alias": "next", "version": 2, "what": "new → 2"}),
        ("alias.deleted", {"task": "tone", "alias": "next", "before": 2, "what": "deleted, was 2"}),
        ("version.deleted", {"task": "tone", "version": 2, "what": "version 2"}),
        ("task.deleted", {"task": "tone", "what": ""}),
        ("alias.moved", {"task": "tone", "alias": "live", "version": 4, "what": "new → 4"}),
    ]


def test_a_message_that_is_refused_is_given_up_and_holds_up_no_other(tmp_path, receiver, caplog):
    receiver.status_of = lambda body: 400 if body["data"]["task"] == "tone" else 200
    with opened(tmp_path, **receiver.settings) as runtime:
        for task in ("calm", "tone", "mood"):
            upload(runtime, task, Task(seed=1))
        runtime.hooks.announce("alarm.on", {"task": "tone", "version": 1})
        runtime.hooks.announce("alarm.on", {"task": "mood", "version": 1})
        wait_until(lambda: len(receiver.taken) == 3)
        assert receiver.moves == [("calm", "live", 1, 1), ("mood", "live", 1, 3)]
        assert counted(runtime, "dead") == 2
        assert len(receiver.refused) == 2 * sender.MAX_REFUSALS
    dead = [record.getMessage() for record in caplog.records if "gave up" in record.getMessage()]
    assert [receiver.refused[at][0] in line for at, line in zip((0, -1), dead, strict=True)] == [True, True]
    assert "alias.moved change-2-" in dead[0]
    # A start knows what was given up.
    with opened(tmp_path, **receiver.settings) as runtime:
        upload(runtime, "last", Task(seed=1))
        wait_until(lambda: receiver.moves[-1] == ("last", "live", 1, 4))
        assert len(receiver.refused) == 2 * sender.MAX_REFUSALS


@pytest.mark.parametrize("status", [307, 408, 429, 503])
def test_a_message_waits_for_a_receiver_that_refuses_the_moment_or_redirects(tmp_path, receiver, status):
    receiver.status = status
    with opened(tmp_path, **receiver.settings) as runtime:
        upload(runtime, "tone", Task(seed=1))
        wait_until(lambda: len(receiver.refused) > sender.MAX_REFUSALS + 2)
        assert counted(runtime, "dead") == 0
        receiver.status = 200
        wait_until(lambda: receiver.moves == [("tone", "live", 1, 1)])
    assert set(receiver.paths) == {"/hooks"}


def test_no_proxy_gets_the_messages_for_loopback(tmp_path, receiver, monkeypatch):
    with Receiver() as proxy:
        for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY"):
            monkeypatch.setenv(name, proxy.url.removesuffix("/hooks"))
        with opened(tmp_path, **receiver.settings) as runtime:
            upload(runtime, "tone", Task(seed=1))
            wait_until(lambda: receiver.taken or proxy.paths)
        assert (len(receiver.taken), proxy.paths) == (1, [])


@needs("gate")
def test_a_failed_gate_is_told_without_texts(tmp_path, receiver):
    with opened(tmp_path, **receiver.settings) as runtime:
        for seed in (1, 2):
            upload(runtime, "tone", Task(seed=seed))
        rules = {"must": [{"text": "a text of its own", "label": "label 0"}, {"text": "another", "label": "label 1"}]}
        rules["must"] += [{"text": "a text of its own", "label": "label 1"}]
        assert ask(runtime, "PUT", "/v1/tasks/tone/gate", json={"rules": rules}).is_success
        assert move(runtime, 2, 1).status_code == 409
        wait_until(lambda: len(receiver.taken) == 2)
    (body,) = [body for _, body in receiver.taken if body["type"] == "gate.failed"]
    assert {name: body["data"][name] for name in ("task", "alias", "candidate")} == {
        "task": "tone",
        "alias": "live",
        "candidate": 2,
    }
    (check,) = body["data"]["checks"]
    assert check["name"] == "must"
    assert "text" not in str(body)


def test_an_event_beyond_the_most_that_wait_is_dropped(tmp_path, receiver, monkeypatch):
    monkeypatch.setattr(sender, "MOST_WAITING", 2)
    receiver.status = 500
    with opened(tmp_path, **receiver.settings) as runtime:
        emit = runtime.hooks.announce
        for number in range(5):
            emit("alarm.on", {"number": number})
        assert counted(runtime, "dropped") == 3
        receiver.status = 200
        wait_until(lambda: [body["data"]["number"] for _, body in receiver.taken] == [0, 1])


def test_two_replicas_on_one_registry_send_each_move_once(tmp_path, receiver, postgres_url):
    with ExitStack() as stack:
        given = receiver.settings | {"registry": postgres_url}
        first, other = (stack.enter_context(opened(tmp_path, **given)) for _ in range(2))
        for number in range(10):
            upload((first, other)[number % 2], f"task-{number}", Task(seed=1))
        wait_until(lambda: counted(first, "sent") + counted(other, "sent") == 10)
        assert receiver.moves == [(f"task-{number}", "live", 1, number + 1) for number in range(10)]


def test_the_pages_example_verifies_a_message(receiver):
    (code,) = re.findall(r"```python\n(import base64.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names = {}
    exec(code, names)
    message = WebhookMessage("change-1-2", "alarm.on", datetime.now(UTC), {"task": "tone"})
    now = int(time.time())
    headers = httpx.Headers(signed(message, SECRET, now))
    assert names["genuine"](KEY, headers, message.body)
    assert not names["genuine"](KEY, headers, message.body + b" ")
    assert not names["genuine"](KEY, httpx.Headers(signed(message, SECRET, now - 3600)), message.body)
    assert not names["genuine"]("whsec_" + KEY[-8:] * 4, headers, message.body)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"webhook_url": "https://example.org/x"}, "together"),
        ({"webhook_key": KEY}, "together"),
        ({"webhook_url": "http://example.org/s3cret", "webhook_key": KEY}, "https://"),
        ({"webhook_url": "http://localhost.example.org/s3cret", "webhook_key": KEY}, "https://"),
        ({"webhook_url": "https://user:s3cret@", "webhook_key": KEY}, "https://"),
        ({"webhook_url": "https://example.org", "webhook_key": "whsec_s3cret"}, "24 to 64 bytes"),
        ({"webhook_url": "https://example.org", "webhook_key": KEY.removeprefix("whsec_")}, "24 to 64 bytes"),
    ],
)
def test_settings_that_break_a_rule_are_refused_without_their_value(given, message):
    with pytest.raises(InvalidSettings, match=message) as caught:
        load_settings(**given)
    assert "s3cret" not in caught.value.detail
    assert KEY not in caught.value.detail


@pytest.mark.parametrize("url", ["https://example.org/a?b=c", "http://127.0.0.1:80", "http://localhost/x"])
def test_addresses_that_may_be_used(url):
    settings = load_settings(webhook_url=url, webhook_key=KEY)
    assert settings.webhook_url == url
    assert hashlib.sha256(SECRET).hexdigest() not in repr(settings)
    assert KEY not in repr(settings)
