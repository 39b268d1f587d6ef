"""Versions of examples over HTTP: a task at once, its improvement beside the answers, deaths in the middle of it."""

import asyncio
import json
import os
import re
import signal
import time
from contextlib import contextmanager
from dataclasses import replace
from itertools import product
from pathlib import Path

import httpx
import pytest

from needs import needs
from onebert_server.access.principal import EVERY_SCOPE, Principal
from onebert_server.client import Client
from onebert_server.extensions.trainer.trainer import Trainer
from onebert_store.errors import (
    DeadlineExceeded,
    Forbidden,
    ImprovementNotFound,
    Improving,
    InvalidData,
    InvalidInput,
    OneBertError,
    OverQuota,
    QueueFull,
    ShuttingDown,
    TooLarge,
    TrainerFailed,
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
OVER = ("done", "failed")


def rows_of(examples):
    return [{"text": text, "label": label} for text, label in examples]


def post(client, task, examples, **more):
    return client.send("POST", f"/v1/tasks/{task}/examples", json={"examples": rows_of(examples)} | more)


def improvement(client, task):
    return client.send("GET", f"/v1/tasks/{task}/improvement").json()


def ended(client, task):
    wait_until(lambda: improvement(client, task)["state"] in OVER)
    return improvement(client, task)


def worker_of(server):
    """The process of the server that trains."""
    found = [
        one for one in server.children() if b"onebert_training.worker" in Path(f"/proc/{one}/cmdline").read_bytes()
    ]
    return found[0] if found else None


@contextmanager
def stopped(process):
    """Lets a process compute nothing while the block runs."""
    os.kill(process, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(process, signal.SIGCONT)


def labels(client, ref, examples):
    return [one["label"] for one in client.classify(ref, [text for text, _ in examples])["results"]]


@pytest.mark.slow
@both_layouts
def test_examples_are_a_live_task_that_answers_them(server, client):
    made = post(client, "tone", EXAMPLES)
    told = made.json()
    assert (made.status_code, told["version"], told["live"], told["improvement"]) == (201, 1, True, None)
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
    assert (told["version"], told["live"], told["improvement"]["state"]) == (1, True, "waiting")
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
    with Client(server.url) as own:
        made = own.create_from_examples("several", rows)
        assert made.live
        assert own.version("several", 1).task_type == "multi_label"
        answers = own.classify("several", [text for text, _ in rows])
    right = [sorted(answer.labels or ()) == sorted(labels) for answer, (_, labels) in zip(answers, rows, strict=True)]
    assert sum(right) > 0.9 * len(rows)


@pytest.mark.slow
def test_the_head_answers_until_an_improvement_is_a_version(server, client):
    began = post(client, "free", EXAMPLES, improve=True).json()["improvement"]
    assert (began["state"], began["head"], began["version"]) == ("waiting", 1, None)
    with stopped(worker_of(server)):
        assert improvement(client, "free")["state"] not in OVER
        assert [one["version"] for one in client.task("free")["versions"]] == [1]
        assert labels(client, "free", EXAMPLES) == [label for _, label in EXAMPLES], "the head answers meanwhile"
        with pytest.raises(Improving):
            post(client, "free", EXAMPLES, improve=True)
    free = ended(client, "free")
    assert (free["state"], free["version"], free["live"]) == ("done", 2, free["reason"] is None)
    assert client.task("free")["aliases"] == {"live": 2 if free["live"] else 1}
    assert free["live"] or "standard error" in free["reason"]


@pytest.mark.slow
@needs("gate")
def test_an_improvement_goes_live_if_it_passes_the_gate(server, client):
    """Equal examples train equal versions: the first one's answer is a rule that others pass or break."""
    post(client, "ruled", EXAMPLES, improve=True)
    assert ended(client, "ruled")["version"] == 2
    [label] = labels(client, "ruled@2", EXAMPLES[:1])
    wrong = next(one for one in WORDS if one != label)
    for task, must, live in (("passes", label, True), ("breaks", wrong, False)):
        post(client, task, EXAMPLES)
        rules = {"must": [{"text": EXAMPLES[0][0], "label": must}]}
        client.send("PUT", f"/v1/tasks/{task}/gate", json={"rules": rules})
        post(client, task, EXAMPLES, improve=True)
        found = ended(client, task)
        assert (found["state"], found["version"], found["live"]) == ("done", 2, live)
        assert client.task(task)["aliases"] == {"live": 2 if live else 1}
        assert live or "must" in found["reason"]


def test_a_live_version_that_came_between_stays(server, client):
    post(client, "moved", EXAMPLES)
    post(client, "moved", EXAMPLES[1:])
    client.move_alias("moved", "live", 2, "1")
    post(client, "moved", EXAMPLES, improve=True)
    found = ended(client, "moved")
    assert (found["version"], found["live"]) == (3, False)
    assert "version 1" in found["reason"]
    assert client.task("moved")["aliases"] == {"live": 2}


def test_no_deleted_task_comes_back_with_its_improvement(server, client):
    post(client, "gone", EXAMPLES, improve=True)
    client.send("DELETE", "/v1/tasks/gone")
    # One improvement runs at a time: when the next has ended, this one has.
    post(client, "next", EXAMPLES, improve=True)
    assert ended(client, "next")["state"] == "done"
    assert "gone" not in [task["name"] for task in client.tasks()]


def test_what_was_refused_for_its_time_is_no_version(server, client):
    body = {"examples": rows_of(EXAMPLES)}
    with stopped(worker_of(server)):
        late = httpx.post(f"{server.url}/v1/tasks/late/examples", json=body, headers={"X-Request-Timeout": "0.2"})
    assert late.json()["code"] == "deadline-exceeded"
    assert post(client, "behind", EXAMPLES).json()["live"]
    assert "late" not in [task["name"] for task in client.tasks()]


def test_more_rows_times_labels_than_one_core_fits_in_seconds_are_refused(server, client):
    rows = [(f"text {i}", f"class {i}") for i in range(2000)]
    with pytest.raises(TooLarge, match="2000 examples times 2000 labels are 4000000"):
        post(client, "large", rows)
    # No head is fitted for names alone.
    assert client.send("POST", "/v1/tasks/names/examples", json={"labels": [label for _, label in rows]}).json()["live"]


@pytest.mark.parametrize(
    ("examples", "kind", "said"),
    [
        ([("good", "a"), (" ", "b")], InvalidInput, "examples.1.text"),
        ([("good", "a"), ("bad", "")], InvalidInput, "examples.1.label"),
        ([("good", "a")], InvalidInput, "at least 2 items"),
        ([("good", "a"), ("bad", ["b"])], InvalidInput, r"examples\.1 has labels, and others do not"),
        ([("good", ["a"]), ("bad", [""])], InvalidInput, r"examples\.1\.labels\.0"),
        ([("good", "a"), ("bad", "a")], InvalidData, "same label"),
    ],
)
def test_bad_rows_are_named(server, examples, kind, said):
    with Client(server.url) as client, pytest.raises(kind, match=said):
        client.create_from_examples("bad", examples)


def test_pairs_stay_among_pairs(server):
    with Client(server.url) as client, pytest.raises(InvalidInput, match=r"examples\.1 has no text_pair"):
        client.create_from_examples("bad", [(("good", "thing"), "a"), ("bad", "b")])


def test_label_names_alone_give_a_served_task(server, client):
    with Client(server.url) as own:
        made = own.create_from_labels("named", [*WORDS])
        assert (made.version, made.live, made.score, made.improvement) == (1, True, None, None)
        assert own.create_from_labels("named", [*WORDS]).version == 1
    # The vector of a name is nearest to itself.
    assert labels(client, "named", [(word, word) for word in WORDS]) == [*WORDS]
    made = post(client, "named", EXAMPLES).json()
    assert (made["version"], made["live"]) == (2, False)
    alike = client.send("POST", "/v1/tasks/alike/examples", json={"labels": ["refund", "Refund ", "❤️"]}).json()
    assert [note for note in alike["notes"] if "case or spaces alone" in note and "❤️" not in note]


def test_descriptions_decide_alone_or_as_one_more_example_each(server, client):
    described = {label: f"{word} {word}" for label, word in zip(("a", "b", "c"), WORDS, strict=False)}
    with Client(server.url) as own:
        assert own.create_from_labels("described", described).live
        asked = [(text, label) for label, text in described.items()]
        assert labels(client, "described", asked) == [*described]
        # The same version as if the descriptions, or the names as words, had been sent as examples.
        names = [*dict.fromkeys(label for _, label in EXAMPLES)]
        for task, words in (("both", {label: f"it is {label}" for label in names}), ("by-name", names)):
            both = own.create_from_examples(task, EXAMPLES, labels=words)
            texts = words.values() if isinstance(words, dict) else names
            plain = own.create_from_examples(task, [*EXAMPLES, *zip(texts, names, strict=True)])
            assert (both.version, both.digest, both.score) == (1, plain.digest, plain.score)


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ({}, "give examples"),
        ({"examples": [{"text": "x"}, {"text": "y"}]}, r"examples\.0 must have label, or labels"),
        (
            {"labels": ["a", "b"], "examples": [{"text": "x", "labels": ["a"]}, {"text": "y", "labels": []}]},
            "labels stand beside examples of one text with one label each",
        ),
        ({"labels": {"a": "x", "b": ""}}, r"labels\.b: must not be empty"),
        ({"labels": {"a": "x", "b": " "}}, r"labels\.b: must not be blank"),
        ({"labels": {"a": "x", "b": 1}}, r"labels\.b: must be a (string|text)"),
        ({"labels": {"a": "x", "\u200b": "y"}}, r"labels.*: must have a visible character"),
        ({"labels": {"a": "x"}}, "labels: must have at least 2"),
        ({"labels": "a"}, "labels: must be a list"),
        ({"labels": ["a", "b"], "improve": True}, "improve takes examples"),
        ({"labels": ["a"]}, "labels: must have at least 2 items"),
        ({"labels": ["a", "a"]}, "label"),
        ({"labels": ["a", "\u200b"]}, r"labels\.1: must have a visible character"),
        ({"examples": rows_of([("x", "\u2800 \ufe0f"), ("y", "b")])}, r"label: must have a visible character"),
    ],
)
def test_names_that_are_no_labels_are_refused(server, client, body, said):
    with pytest.raises(OneBertError, match=said):
        client.send("POST", "/v1/tasks/bad/examples", json=body)


@pytest.mark.slow
def test_principals_take_turns(tmp_path):
    """One of a principal's three improvements runs and two wait; another's, asked last, ends before the last."""
    names = {"acme": "a-key-of-sixteen", "blue": "b-key-of-sixteen"}
    with Server(tmp_path, api_keys=",".join(names.values()), **SETTINGS) as server:
        acme, blue = (server.client(api_key=key) for key in names.values())
        with acme, blue:
            asked = [(acme, "acme-0"), (acme, "acme-1"), (acme, "acme-2"), (blue, "blue")]
            for client, task in asked:
                post(client, task, EXAMPLES, improve=True)
            assert {ended(client, task)["state"] for client, task in asked} == {"done"}
            made = {task: client.version(task, 2)["created_at"] for client, task in asked}
    assert made["acme-0"] < made["acme-1"] < made["acme-2"]
    assert made["blue"] < made["acme-2"]


@pytest.mark.slow
def test_a_killed_worker_fails_its_job_and_is_started_again(tmp_path):
    with Server(tmp_path, **SETTINGS) as server, server.client() as client:
        post(client, "tone", EXAMPLES, improve=True)
        wait_until(lambda: improvement(client, "tone")["state"] == "training")
        killed = worker_of(server)
        os.kill(killed, signal.SIGKILL)
        found = ended(client, "tone")
        assert (found["state"], found["version"]) == ("failed", None)
        assert "started again" in found["reason"]
        assert labels(client, "tone", EXAMPLES[:1]) == [EXAMPLES[0][1]]

        def trains():
            try:
                return post(client, "tone", EXAMPLES).json()["version"] == 1
            except TrainerFailed:
                return False

        wait_until(trains)
        assert worker_of(server) not in (None, killed)
        assert len(client.task("tone")["versions"]) == 1


@pytest.mark.slow
def test_a_killed_server_leaves_whole_versions_and_no_worker(tmp_path):
    with Server(tmp_path, **SETTINGS) as server:
        with server.client() as client:
            post(client, "tone", EXAMPLES, improve=True)
            wait_until(lambda: improvement(client, "tone")["state"] == "training")
        left = worker_of(server)
        server.kill()
        wait_until(lambda: not Path(f"/proc/{left}").exists())
        server.start()
        with server.client() as client:
            assert [one["version"] for one in client.task("tone")["versions"]] == [1]
            assert labels(client, "tone", EXAMPLES[:1]) == [EXAMPLES[0][1]]
            with pytest.raises(ImprovementNotFound):
                improvement(client, "tone")


def of(name, **more):
    """The context of a request with a token."""
    return replace(WORK, principal=Principal(f"oidc:{name}", EVERY_SCOPE, ("*",), **more))


async def created(runtime, task, context, improve=False):
    """Asks the trainer itself; its process may not have been started yet."""
    await asyncio.to_thread(wait_until, lambda: runtime.parts[Trainer].worker._process is not None)
    return await runtime.parts[Trainer].create(task, rows_of(EXAMPLES), improve, context)


async def reached(improvement, state):
    await asyncio.to_thread(wait_until, lambda: improvement.state in (state, *OVER))
    assert improvement.state == state, improvement.reason


@pytest.mark.slow
def test_a_principal_holds_its_share_pays_for_what_is_computed_and_leaves_nothing_when_it_leaves(tmp_path):
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
            # One head of each is in the worker: the others wait for the turns of their principal.
            await asyncio.to_thread(wait_until, lambda: len(trainer.worker._requests) == 2)
            refused = [task.exception() for task in many if task.done()]
            assert (len(refused), {type(error) for error in refused}) == (48, {QueueFull})
            waiting = [task for task in many if not task.done()]
            for task in waiting[:-1]:
                task.cancel()
        await asyncio.wait([*waiting, other])
        names = [task.name for task in runtime.directory.tasks("", 100)]
        made = {name: runtime.directory.version(name, 1).entry.created_at for name in names}
        assert sorted(names) == ["acme-31", "blue", "first"]
        assert made["blue"] < made["acme-31"]

        debts = []
        for name, improve in (("head", False), ("improved", True)):
            poor = of(name, quotas=Quotas(tokens=1.0))
            version = await created(runtime, name, poor, improve)
            if version.improvement:
                await reached(version.improvement, "training")
            with pytest.raises(OverQuota) as refusal:
                await created(runtime, name, poor)
            debts.append(refusal.value.retry_after)
        assert debts[1] > 3 * debts[0] > len(EXAMPLES)

    with opened(tmp_path, trainer=True) as runtime:
        asyncio.run(asked(runtime))


@pytest.mark.slow
def test_an_improvement_ends_with_its_token_and_with_the_server(tmp_path, monkeypatch):
    async def asked(runtime):
        alice, bob = of("alice", expires=time.time() + 3600), of("bob")
        one = (await created(runtime, "one", alice, improve=True)).improvement
        await reached(one, "training")
        with monkeypatch.context() as later:
            later.setattr(runtime.keys, "_clock", lambda: alice.principal.expires)
            await reached(one, "failed")
            with pytest.raises(Forbidden):
                await created(runtime, "two", alice, improve=True)
        other = (await created(runtime, "other", bob, improve=True)).improvement
        await reached(other, "training")
        runtime.draining = True
        await reached(other, "failed")
        assert ("token" in one.reason, "stopping" in other.reason) == (True, True)
        with pytest.raises(ShuttingDown):
            await created(runtime, "late", bob, improve=True)
        assert (await created(runtime, "late", bob)).live, "requests under way are still answered"
        names = ("late", "one", "other")
        assert [list(runtime.directory.task(name).versions) for name in names] == [[1], [1], [1]]

    with opened(tmp_path, trainer=True) as runtime:
        asyncio.run(asked(runtime))


@pytest.mark.slow
def test_a_version_without_room_is_not_trained_and_one_over_the_bound_of_uploads_not_stored(tmp_path):
    async def asked(runtime):
        first = await created(runtime, "one", of("acme"))
        size = first.taken.entry.size
        assert size < runtime.settings.max_upload_bytes
        full = of("acme", quotas=Quotas(tasks=1, bytes=2 * size - 1))
        one = (await created(runtime, "one", full, improve=True)).improvement
        await reached(one, "failed")
        assert ("bytes stored" in one.reason, one.began) == (True, None)
        with stopped(runtime.parts[Trainer].worker._process.pid), pytest.raises(OverQuota, match="1 tasks"):
            await created(runtime, "two", full)
        one = (await created(runtime, "one", of("acme"), improve=True)).improvement
        await reached(one, "failed")
        assert f"an upload at most {runtime.settings.max_upload_bytes}" in one.reason
        assert list(runtime.directory.task("one").versions) == [1]

    with opened(tmp_path, trainer=True, max_upload_bytes=4096) as runtime:
        asyncio.run(asked(runtime))


def test_without_a_trainer_the_refusal_names_the_setting(tmp_path):
    with opened(tmp_path) as runtime:
        answer = ask(runtime, "POST", "/v1/tasks/tone/examples", json={"examples": rows_of(EXAMPLES)})
    problem = answer.json()
    assert OneBertError.of_code[problem["code"]] is TrainerOff
    assert "ONEBERT_TRAINER" in problem["detail"]


def test_the_replicas_of_a_cluster_do_not_train(onebert):
    status, _, error = onebert("serve", "--trainer", "--ray", "auto")
    assert (status, error) == (1, "error: ONEBERT_TRAINER is for one server, not for the replicas of a cluster\n")
