"""Versions of examples over HTTP: a task at once, its bounds, and the death of the process that trains."""

import asyncio
import fcntl
import json
import os
import re
import signal
import sys
import termios
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import httpx
import pytest

from onebert_server.access.principal import EVERY_SCOPE, Principal
from onebert_server.client import Client
from onebert_server.extensions.trainer.trainer import Trainer
from onebert_store.errors import (
    DeadlineExceeded,
    OneBertError,
    OverQuota,
    QueueFull,
    TooLarge,
    TrainerOff,
)
from onebert_store.registry.grants import Quotas
from runtimes import WORK, ask, opened
from servers import Server, both_layouts, wait_until
from trainings import THINGS

# The training process has the lowest priority, and is started beside other tests.
SETTINGS = {"trainer": True, "request_timeout": 600}
WORDS = {"praise": "good", "complaint": "bad"}
GUIDE = Path(__file__).parents[3] / "docs/guide/examples.md"
EXAMPLES = [
    (f"the {thing} was very {word} {when}", label)
    for (label, word), thing, when in product(WORDS.items(), THINGS, ("now", "late"))
]


def rows_of(examples):
    return [{"text": text, "label": label} for text, label in examples]


def post(client, task, examples):
    return client.send("POST", f"/v1/tasks/{task}/examples", json={"examples": rows_of(examples)})


def worker_of(server):
    """The process of the server that trains."""
    workers = [
        child
        for child in server.children()
        if b"onebert_training.worker" in Path(f"/proc/{child}/cmdline").read_bytes()
    ]
    return workers[0] if workers else None


def unread(process):
    """The bytes that wait in the pipe to a process."""
    with open(f"/proc/{process}/fd/0", "rb") as pipe:
        waiting = bytearray(4)
        fcntl.ioctl(pipe, termios.FIONREAD, waiting)
    return int.from_bytes(waiting, sys.byteorder)


@contextmanager
def stopped(process):
    """Lets a process compute nothing while the block runs."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def labels(client, ref, examples):
    return [result["label"] for result in client.classify(ref, [text for text, _ in examples])["results"]]


@pytest.mark.slow
@both_layouts
def test_examples_are_a_live_task_that_answers_them(server, client):
    made = post(client, "tone", EXAMPLES)
    told = made.json()
    assert (made.status_code, told["version"], told["live"]) == (201, 1, True)
    assert made.headers["location"] == "/v1/tasks/tone/versions/1"
    assert labels(client, "tone", EXAMPLES) == [label for _, label in EXAMPLES]
    again = post(client, "tone", EXAMPLES)
    assert (again.status_code, again.json()) == (200, told)
    others = post(client, "tone", EXAMPLES[1:]).json()
    assert (others["version"], others["live"]) == (2, False)
    assert client.task("tone")["aliases"] == {"live": 1}


def test_a_version_holds_none_of_its_examples(server, client):
    post(client, "tone", EXAMPLES)
    file = client.download("tone", 1)
    assert b"complaint" in file
    assert not any(text.encode() in file for text, _ in EXAMPLES)
    manifest = client.version("tone", 1)["manifest"]
    assert (manifest["method"], manifest["training"]["data"]["name"]) == ("head", "examples")


def test_the_guides_request_makes_a_task(client):
    body = json.loads(re.search(r"--json '(.+?)'\n", GUIDE.read_text(), re.DOTALL)[1])
    told = client.send("POST", "/v1/tasks/mail/examples", json=body).json()
    assert (told["version"], told["live"]) == (1, True)
    rows = [(row["text"], row["label"]) for row in body["examples"]]
    assert labels(client, "mail@1", rows) == [label for _, label in rows]


def test_a_first_version_that_a_constant_answer_equals_is_not_live_and_says_so(client):
    told = post(client, "two", [("where is it?", "question"), ("it is broken", "complaint")]).json()
    assert (told["version"], told["live"]) == (1, False)
    assert told["score"] <= 0.5
    assert "it is not live, since one constant answer is as good" in told["notes"][-1]
    assert client.task("two")["aliases"] == {}
    assert not any("not live" in note for note in post(client, "more", EXAMPLES).json()["notes"])


def test_examples_with_several_labels_make_a_multi_label_task(server, client):
    texts = {(word, when): f"the {{}} was very {word} {when}" for word in ("good", "bad") for when in ("now", "late")}
    rows = [
        (text.format(thing), [label for label, sign in (("praise", "good"), ("late", "late")) if sign in (word, when)])
        for (word, when), text in texts.items()
        for thing in THINGS
    ]
    assert {len(labels) for _, labels in rows} == {0, 1, 2}
    with Client(server.url) as web:
        made = web.create_from_examples("several", rows)
        assert made.live
        assert web.version("several", 1).task_type == "multi_label"
        answers = web.classify("several", [text for text, _ in rows])
    right = [sorted(answer.labels or ()) == sorted(labels) for answer, (_, labels) in zip(answers, rows, strict=True)]
    assert sum(right) > 0.9 * len(rows)


def test_more_rows_times_labels_than_one_core_fits_in_seconds_are_refused(server, client):
    rows = [(f"text {i}", f"class {i}") for i in range(2000)]
    with pytest.raises(TooLarge, match="2000 examples times 2000 labels are 4000000"):
        post(client, "large", rows)
    # No head is fitted for names alone.
    assert client.send("POST", "/v1/tasks/names/examples", json={"labels": [label for _, label in rows]}).json()["live"]


def test_label_names_alone_give_a_served_task(server, client):
    with Client(server.url) as web:
        made = web.create_from_labels("named", [*WORDS])
        assert (made.version, made.live, made.score) == (1, True, None)
        assert web.create_from_labels("named", [*WORDS]).version == 1
    # The vector of a name is nearest to itself.
    assert labels(client, "named", [(word, word) for word in WORDS]) == [*WORDS]
    made = post(client, "named", EXAMPLES).json()
    assert (made["version"], made["live"]) == (2, False)
    alike = client.send("POST", "/v1/tasks/alike/examples", json={"labels": ["refund", "Refund ", "❤️"]}).json()
    assert [note for note in alike["notes"] if "case or spaces alone" in note and "❤️" not in note]


def test_descriptions_decide_alone_or_as_one_more_example_each(server, client):
    described = {label: f"{word} {word}" for label, word in zip(("a", "b", "c"), WORDS, strict=False)}
    with Client(server.url) as web:
        assert web.create_from_labels("described", described).live
        asked = [(text, label) for label, text in described.items()]
        assert labels(client, "described", asked) == [*described]
        # The same version as if the descriptions, or the names as words, had been sent as examples.
        names = [*dict.fromkeys(label for _, label in EXAMPLES)]
        for task, words in (("both", {label: f"it is {label}" for label in names}), ("by-name", names)):
            both = web.create_from_examples(task, EXAMPLES, labels=words)
            texts = words.values() if isinstance(words, dict) else names
            plain = web.create_from_examples(task, [*EXAMPLES, *zip(texts, names, strict=True)])
            assert (both.version, both.digest, both.score) == (1, plain.digest, plain.score)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({}, "give examples"),
        ({"examples": rows_of([("good", "a"), (" ", "b")])}, "examples.1.text"),
        ({"examples": rows_of([("good", "a"), ("bad", "")])}, "examples.1.label"),
        ({"examples": rows_of([("good", "a")])}, "at least 2 items"),
        (
            {"examples": [{"text": "x", "label": "a"}, {"text": "y", "labels": ["b"]}]},
            r"examples\.1 has labels, and others do not",
        ),
        ({"examples": rows_of([("good", "a"), ("bad", "a")])}, "same label"),
        ({"examples": [{"text": "x"}, {"text": "y"}]}, r"examples\.0 must have label, or labels"),
        (
            {"labels": ["a", "b"], "examples": [{"text": "x", "labels": ["a"]}, {"text": "y", "labels": []}]},
            "labels stand beside examples of one text with one label each",
        ),
        ({"labels": {"a": "x", "b": ""}}, r"labels\.b: must have at least 1 character"),
        ({"labels": {"a": "x", "b": " "}}, r"labels\.b: must not be blank"),
        ({"labels": {"a": "x", "b": 1}}, r"labels\.b: must be a (string|text)"),
        ({"labels": {"a": "x", "\u200b": "y"}}, r"labels.*: must have a visible character"),
        ({"labels": {"a": "x"}}, "labels: must have at least 2"),
        ({"labels": "a"}, "labels: must be a list"),
        ({"labels": ["a"]}, "labels: must have at least 2 items"),
        ({"labels": ["a", "a"]}, "label"),
        ({"labels": ["a", "\u200b"]}, r"labels\.1: must have a visible character"),
        ({"examples": rows_of([("x", "\u2800 \ufe0f"), ("y", "b")])}, r"label: must have a visible character"),
    ],
)
def test_examples_and_labels_that_are_none_are_refused(server, client, body, message):
    with pytest.raises(OneBertError, match=message):
        client.send("POST", "/v1/tasks/bad/examples", json=body)


@pytest.mark.slow
def test_a_killed_worker_fails_its_request_and_is_started_again(tmp_path):
    with Server(tmp_path, **SETTINGS) as server, server.client() as client, ThreadPoolExecutor(1) as pool:
        post(client, "tone", EXAMPLES)
        killed = worker_of(server)
        with stopped(killed):
            asked = pool.submit(httpx.post, f"{server.url}/v1/tasks/two/examples", json={"examples": rows_of(EXAMPLES)})
            wait_until(lambda: unread(killed))
            os.kill(killed, signal.SIGKILL)
        problem = asked.result().json()
        assert (problem["code"], "started again" in problem["detail"]) == ("trainer-failed", True)
        assert labels(client, "tone", EXAMPLES[:1]) == [EXAMPLES[0][1]]
        assert post(client, "two", EXAMPLES).json()["version"] == 1
        left = worker_of(server)
        assert left not in (None, killed)
        server.kill()
        wait_until(lambda: not Path(f"/proc/{left}").exists())
        server.start()
        with server.client() as again:
            assert [[version["version"] for version in again.task(task)["versions"]] for task in ("tone", "two")] == [
                [1],
                [1],
            ]
            assert labels(again, "two", EXAMPLES[:1]) == [EXAMPLES[0][1]]


def of(name, **more):
    """The context of a request with a token."""
    return replace(WORK, principal=Principal(f"oidc:{name}", EVERY_SCOPE, ("*",), **more))


async def created(runtime, task, context):
    """Asks the trainer itself."""
    return await runtime.parts[Trainer].create(task, rows_of(EXAMPLES), context)


@pytest.mark.slow
def test_principals_take_turns_hold_their_shares_and_leave_nothing_when_they_leave(tmp_path):
    async def asked(runtime):
        acme, blue = of("acme"), of("blue")
        await created(runtime, "first", acme)
        trainer = runtime.parts[Trainer]
        # A context without the time that the work takes: it is trained, and not stored.
        with pytest.raises(DeadlineExceeded):
            await created(runtime, "late", replace(acme, deadline=time.monotonic()))
        with stopped(trainer.worker._process.pid):
            many = [asyncio.create_task(created(runtime, f"acme-{number}", acme)) for number in range(80)]
            other = asyncio.create_task(created(runtime, "blue", blue))
            await asyncio.to_thread(wait_until, lambda: unread(trainer.worker._process.pid))
            refused = [task.exception() for task in many if task.done()]
            assert (len(refused), {type(error) for error in refused}) == (48, {QueueFull})
            waiting = [task for task in many if not task.done()]
            for task in waiting[:-2]:
                task.cancel()
        await asyncio.wait([*waiting, other])
        names = [task.name for task in runtime.directory.tasks("", 100)]
        made = {name: runtime.directory.version(name, 1).entry.created_at for name in names}
        assert sorted(names) == ["acme-30", "acme-31", "blue", "first"]
        assert made["blue"] < made["acme-31"]

        poor = of("poor", quotas=Quotas(tokens=1.0))
        await created(runtime, "paid", poor)
        with pytest.raises(OverQuota) as refusal:
            await created(runtime, "paid", poor)
        assert refusal.value.retry_after > len(EXAMPLES)

    with opened(tmp_path, trainer=True) as runtime:
        asyncio.run(asked(runtime))


@pytest.mark.slow
def test_a_version_without_room_is_not_trained_and_one_over_the_bound_of_uploads_not_stored(tmp_path):
    async def asked(runtime):
        full = of("acme", quotas=Quotas(tasks=0))
        with stopped(runtime.parts[Trainer].worker._process.pid), pytest.raises(OverQuota, match="0 tasks"):
            await created(runtime, "one", full)
        with pytest.raises(TooLarge, match="an upload at most 1024"):
            await created(runtime, "one", of("acme"))
        assert runtime.directory.tasks("", 100) == []

    with opened(tmp_path, trainer=True, max_upload_bytes=1024) as runtime:
        asyncio.run(asked(runtime))


def test_without_a_trainer_the_refusal_names_the_setting(tmp_path):
    with opened(tmp_path) as runtime:
        answer = ask(runtime, "POST", "/v1/tasks/tone/examples", json={"examples": rows_of(EXAMPLES)})
    problem = answer.json()
    assert OneBertError.of_code[problem["code"]] is TrainerOff
    assert "ONEBERT_TRAINER" in problem["detail"]
