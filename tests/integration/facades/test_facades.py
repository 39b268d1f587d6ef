"""What all façades have in common: where the task's name may stand, and that how every error looks."""

import asyncio
import hashlib
from dataclasses import replace

import pytest

from onebert_server.access.keys import Holder
from onebert_server.answering import sizes
from onebert_server.facades.routes import facade_paths, form_of
from onebert_server.http.problems import Fault
from tenants import TENANTS, Asker, tenants_runtime

TEXT = "please help my order is late"
DEFAULT_KEY = "key-of-acme-with-a-default"
NAMED = {"inputs": TEXT, "parameters": {}}


@pytest.fixture(scope="module")
def runtime(tmp_path_factory):
    with tenants_runtime(tmp_path_factory.mktemp("facades")) as opened:
        ours = TENANTS | {DEFAULT_KEY: replace(TENANTS["key-of-acme"], default_task="acme-two1")}
        opened.keys.replace({hashlib.sha256(key.encode()).digest(): Holder(who) for key, who in ours.items()})
        yield opened


@pytest.fixture(scope="module")
def asker(runtime):
    return Asker(runtime)


def ask(asker, path, key="key-of-acme", method="POST", **arguments):
    return asyncio.run(asker.ask(key, method, path, **arguments))


def scores(asker, task):
    return ask(asker, f"/v1/tasks/{task}/classify", json={"inputs": TEXT}).json()["results"][0]["scores"]


def labeled(answer):
    assert answer.status_code == 200, answer.text
    [answers] = answer.json()
    return {entry["label"]: entry["score"] for entry in answers}


@pytest.mark.parametrize(
    ("path", "headers", "key", "task"),
    [
        ("/t/acme-tone", {}, "key-of-acme", "acme-tone"),
        ("/t/acme-tone@1/", {}, "key-of-acme", "acme-tone@1"),
        ("/models/acme-two1", {}, "key-of-acme", "acme-two1"),
        ("/", {"detector-id": "acme-tone"}, "key-of-acme", "acme-tone"),
        ("/t/acme-tone", {"detector-id": "acme-tone"}, "key-of-acme", "acme-tone"),
        ("/", {}, DEFAULT_KEY, "acme-two1"),
        ("/t/acme-tone", {}, DEFAULT_KEY, "acme-tone"),
    ],
)
def test_the_task_is_named_in_one_of_several_places(asker, path, headers, key, task):
    assert labeled(ask(asker, path, key, json=NAMED, headers=headers)) == scores(asker, task)


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/t/acme-tone", {"detector-id": "acme-two1"}),
        ("/t/acme-tone/models/acme-two1", {}),
        ("/models/acme-tone", {"detector-id": "acme-two1"}),
        ("/", {}),
        ("/", {"detector-id": "x" * 300}),
    ],
)
def test_a_request_names_one_task(asker, path, headers):
    answer = ask(asker, path, json=NAMED, headers=headers)
    assert answer.status_code == 422
    assert list(answer.json()) == ["error"]


def test_every_error_is_in_the_form_of_the_facade(asker):
    """What is refused before any route is looked up, by the route, and behind it."""
    path = "/t/acme-tone"
    json = {"content-type": "application/json"}
    answers = [
        ask(asker, path, "no-such-key-0000", json=NAMED),
        ask(asker, path, "key-to-upload", json=NAMED),
        ask(asker, "/t/blue-tone", json=NAMED),
        ask(asker, path, method="PUT", json=NAMED),
        ask(asker, path, json=NAMED, headers={"X-Request-Timeout": "soon"}),
        ask(asker, path, content=b"{" + b" " * 9_000_000 + b"}", headers=json),
        ask(asker, path, content=b"{", headers=json),
        ask(asker, path, content=b"{}", headers={"content-type": "text/plain"}),
        ask(asker, path, json={"inputs": TEXT, "parameters": {"unheard_of": 1}}),
    ]
    assert [answer.status_code for answer in answers] == [401, 403, 404, 405, 422, 413, 400, 415, 422]
    for answer in answers:
        assert answer.headers["content-type"] == "application/json"
        assert answer.headers["x-request-id"]
        assert list(answer.json()) == ["error"]
    assert answers[0].headers["www-authenticate"] == "Bearer"
    assert "parameters.unheard_of" in answers[-1].json()["error"]


def test_a_list_of_tasks_that_grows_too_large_says_less_of_each(asker, monkeypatch):
    """Clients read `/v1/models` in one piece, so that they would otherwise have none of it."""

    def listed():
        return ask(asker, "/v1/models", "key-of-all", method="GET")

    whole = listed()
    assert all("heads" in row for row in whole.json()["data"])
    monkeypatch.setattr(sizes, "MAX_ANSWER_BYTES", len(whole.content) - 1)
    less = listed()
    assert less.status_code == 200
    named = ("id", "object", "created", "owned_by", "root")
    assert less.json()["data"] == [{name: row[name] for name in named} for row in whole.json()["data"]]
    monkeypatch.setattr(sizes, "MAX_ANSWER_BYTES", len(less.content) - 1)
    none = listed()
    assert (none.status_code, none.json()["error"]["code"]) == (413, "too-large")
    assert "/v1/tasks" in none.json()["error"]["message"]


@pytest.mark.parametrize("path", sorted(facade_paths()))
def test_every_facade_words_every_status(path):
    """A form is a table of what its clients know; whatever comes, it has words and a status of an error."""
    form = form_of(path)
    if form is None:  # the server's own path, too: there the body tells
        return
    for status in (400, 401, 403, 404, 405, 408, 413, 415, 422, 429, 500, 503, 504, 507):
        reasons = [{"path": "body.inputs", "reason": "is required"}] if status == 422 else []
        worded, body = form(Fault(status, "some-code", "Title", "a detail", reasons, "an-id"))
        assert 400 <= worded < 600
        assert ("is required" if reasons else "a detail") in str(body)
