"""Gates while they run: out of time, several at once, beside changes, and on texts that a version cannot answer."""

import asyncio
import hashlib
import re
import time
from itertools import product
from threading import Event

import pytest
from cryptography.fernet import Fernet

from needs import needs
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.keys import Holder
from onebert_server.access.principal import EVERY_SCOPE, Principal, root
from onebert_server.limits import MAX_ITEMS
from onebert_store.registry.grants import Quotas
from runtimes import LIVE, ask, client, get, opened, upload
from servers import Task, overflowing_on, store, tokenizer, wait_until

WORDS = "late broken lovely bad good great parcel invoice screen refund help password".split()
TEXTS = [" ".join(words) for words in product(WORDS, WORDS)]
OLD, NEW = Task(seed=1), Task(seed=2)
GATE = "/v1/tasks/tone/gate"
AT_1 = {"If-Match": '"1"'}
SECONDS = 3


def rows_of(task, texts=TEXTS):
    return [{"text": text, "label": task.label(text)} for text in texts]


def set_gate(runtime, rules, rows=()):
    answer = ask(runtime, "PUT", GATE, json={"rules": rules, "rows": list(rows)})
    assert answer.status_code == 200, answer.text


def computed(runtime):
    return runtime.metrics.registry.get_sample_value("onebert_batch_sequences_sum")


@pytest.fixture
def runtime(tmp_path):
    store(tmp_path, tone=[OLD, NEW])
    with opened(tmp_path) as runtime:
        # In memory, so that nothing is computed but answers.
        ask(runtime, "POST", "/v1/tasks/tone@2/classify", json={"inputs": "late"})
        yield runtime


async def first_part(runtime, moving, before):
    while computed(runtime) < before + MAX_ITEMS and not moving.done():
        await asyncio.sleep(0)


def hold(runtime, released):
    """Holds the engine's thread."""
    [version] = runtime.directory.pin(["tone"], root("test"))
    host, number = version.slot
    held = runtime.engine.ask(host, [Tokens([5], [0])], number)
    held.add_done_callback(lambda _: released.wait())


def test_a_gate_that_ran_out_of_time_goes_on_where_it_ended(runtime):
    rows = rows_of(NEW)
    set_gate(runtime, {"min": {"accuracy": 1.0}, "max": {"flips": 1.0}}, rows)
    released, before = Event(), computed(runtime)

    async def late():
        async with client(runtime) as web:
            until = time.monotonic() + SECONDS
            timeout = {"X-Request-Timeout": str(SECONDS)}
            moving = asyncio.create_task(web.put(LIVE, json={"version": 2}, headers=AT_1 | timeout))
            await first_part(runtime, moving, before)
            hold(runtime, released)
            while time.monotonic() < until:
                await asyncio.sleep(0)
            released.set()
            return await moving

    try:
        refused = asyncio.run(late())
    finally:
        released.set()
    assert (refused.status_code, refused.json()["code"]) == (504, "deadline-exceeded"), refused.text
    [known, total] = map(int, re.findall("[0-9]+", refused.json()["detail"])[:2])
    assert MAX_ITEMS <= known < total == 2 * len(rows)
    # The engine counts a batch after its answers are there; it also computed the question that held it.
    wait_until(lambda: computed(runtime) - before > known)
    between = computed(runtime)
    moved = ask(runtime, "PUT", LIVE, json={"version": 2}, headers=AT_1)
    assert moved.status_code == 200, moved.text
    wait_until(lambda: computed(runtime) - between >= total - known)
    assert computed(runtime) - between == total - known


def test_of_many_moves_with_one_condition_one_is_made_and_the_others_are_told_so(runtime):
    """Under a gate, which is judged once."""
    rows = rows_of(NEW)
    set_gate(runtime, {"min": {"accuracy": 1.0}, "must": rows[:1]}, rows)
    before = computed(runtime)

    async def all_at_once():
        async with client(runtime, timeout=120) as web:
            moving = [web.put(LIVE, json={"version": 2}, headers=AT_1) for _ in range(20)]
            return await asyncio.gather(*moving)

    answers = asyncio.run(all_at_once())
    assert sorted(answer.status_code for answer in answers) == [200] + [412] * 19
    wait_until(lambda: computed(runtime) - before > len(rows))
    assert computed(runtime) - before == len(rows) + 1


def test_the_gate_that_is_set_while_one_is_judged_decides(runtime):
    set_gate(runtime, {"min": {"accuracy": 1.0}}, rows_of(NEW))
    before = computed(runtime)

    async def change():
        async with client(runtime) as web:
            moving = asyncio.create_task(web.put(LIVE, json={"version": 2}, headers=AT_1))
            await first_part(runtime, moving, before)
            assert not moving.done()
            rules = {"must": [{"text": TEXTS[0], "label": "none such"}]}
            assert (await web.put(GATE, json={"rules": rules})).status_code == 200
            return await moving

    refused = asyncio.run(change())
    assert (refused.status_code, refused.json()["code"]) == (409, "gate-failed"), refused.text
    assert [check["name"] for check in refused.json()["report"]["checks"]] == ["must"]
    assert get(runtime, "/v1/tasks/tone").json()["aliases"]["live"] == 1


def test_a_version_is_compared_with_the_one_that_is_live_when_its_alias_moves(runtime):
    upload(runtime, "tone", Task(seed=3))
    assert ask(runtime, "PUT", LIVE, json={"version": 2}, headers=AT_1).status_code == 200
    set_gate(runtime, {"aliases": ["next"], "max": {"flips": 0.0}}, rows_of(NEW))
    before = computed(runtime)

    async def change():
        async with client(runtime) as web:
            path, new = "/v1/tasks/tone/aliases/next", {"If-None-Match": "*"}
            moving = asyncio.create_task(web.put(path, json={"version": 2}, headers=new))
            await first_part(runtime, moving, before)
            assert not moving.done()
            moved = await web.put(LIVE, json={"version": 3}, headers={"If-Match": '"2"'})
            assert moved.status_code == 200
            return await moving

    refused = asyncio.run(change()).json()
    assert (refused["code"], refused["report"]["live"]["version"]) == ("gate-failed", 3)


def test_rows_of_many_windows_are_judged_and_a_text_without_an_answer_is_wrong_and_named(tmp_path):
    """64 rows of some 80 windows each are more sequences than one request may have, and the last one is alone."""
    decision = {"window": {"tokens": 16, "overlap": 4, "reduction": "mean"}}
    right = {"label": "label 0"}
    rows = [{"text": " ".join(f"{letter} b c d e" for _ in range(160))} | right for letter in "fghij" * 13]
    rules = {"min": {"accuracy": 1.0}, "max": {"flips": 0.0}}
    with opened(tmp_path) as runtime:
        for seed in (1, 2):
            task = Task(seed=seed, format=2, decision=decision)
            task.tensors["head.bias"][0] = 1000
            upload(runtime, "tone", task)
        endless, blank = {"text": " ".join("abcdefghij" * 3276)} | right, {"text": "\ufffd"} | right
        set_gate(runtime, rules | {"must": [blank]}, [*rows, endless])
        refused = ask(runtime, "PUT", LIVE, json={"version": 2}, headers=AT_1).json()
        assert (refused["code"], refused["report"]["numbers"]["rows"]) == ("gate-failed", 66)
        assert [wrong["row"] for wrong in refused["report"]["worst"]] == [66]
        assert "row 66: a text would be read in " in refused["detail"]
        assert "must 1: text 1 of 1 must not be blank" in refused["detail"]
        set_gate(runtime, rules, rows)
        assert ask(runtime, "PUT", LIVE, json={"version": 2}, headers=AT_1).status_code == 200


def test_an_answer_that_is_not_finite_is_a_wrong_row_and_named(tmp_path):
    store(tmp_path, tone=[Task(seed=1, labels=2), overflowing_on(TEXTS[2])])
    with opened(tmp_path) as runtime:
        rows = [{"text": text, "label": "label 0"} for text in TEXTS[:3]]
        set_gate(runtime, {"min": {"accuracy": 1.0}}, rows)
        refused = ask(runtime, "PUT", LIVE, json={"version": 2}, headers=AT_1).json()
        assert refused["report"]["worst"] == [{"row": 3, "right": "label 0", "candidate": None, "live": None}]
        assert refused["detail"].endswith("row 3: the answer of tone@2 to this input is not a finite number")
        set_gate(runtime, {"min": {"accuracy": 0.6}}, rows)
        assert ask(runtime, "PUT", LIVE, json={"version": 2}, headers=AT_1).status_code == 200


@needs("feedback")
def test_a_caller_that_owes_for_a_gate_waits_with_requests_of_every_kind(tmp_path):
    """Its gate is admitted while it owes nothing, and counts as one request, however many parts it has."""
    small = {"tokens": Quotas(tokens=10.0), "two": Quotas(requests=2.0), "root": Quotas()}
    store(tmp_path, tone=[OLD, NEW, Task(seed=3)])
    with opened(tmp_path, samples_key=[Fernet.generate_key().decode()]) as runtime:
        holders = {name: Holder(Principal(f"key:{name}", EVERY_SCOPE, ("*",), quotas=of)) for name, of in small.items()}
        runtime.keys.replace({hashlib.sha256(name.encode()).digest(): holder for name, holder in holders.items()})
        runtime.admission.rates._clock = lambda: 0.0

        def ask_as(name, method, path, body=None, **headers):
            return ask(runtime, method, path, json=body, headers={"Authorization": f"Bearer {name}"} | headers)

        rules = {"rules": {"min": {"accuracy": 0.0}}, "rows": rows_of(NEW)}
        assert ask_as("root", "PUT", GATE, rules).status_code == 200
        assert ask_as("root", "PUT", "/v1/tasks/tone/samples", {"share": 1.0}).status_code == 200
        assert ask_as("root", "POST", "/v1/tasks/tone/classify", {"inputs": TEXTS[:3]}).status_code == 200
        assert ask_as("tokens", "PUT", LIVE, {"version": 2}, **AT_1).status_code == 200
        owed = sum(len(tokenizer()(text)["input_ids"]) for text in TEXTS) - 10
        texts, item = {"texts": ["late"], "request_data": {}, "model": "m"}, {"task": "tone", "text": "late"}
        for method, path, body in (
            ("POST", "/v1/tasks/tone/classify", {"inputs": "late"}),
            ("POST", "/v1/tasks/tone/classify", {"inputs": "late", "explain": True}),
            ("POST", "/v1/classify", {"items": [item]}),
            ("POST", "/v1/classify", {"items": [item], "partial": True}),
            ("POST", "/v1/fanout", {"text": "late", "tasks": ["*"]}),
            ("POST", "/t/tone/beta/litellm_basic_guardrail_api", texts),
            ("POST", "/v1/feedback", {"data": [item | {"label": "label 0"}]}),
            ("GET", "/v1/tasks/tone/review", None),
            ("PUT", LIVE, {"version": 3}),
        ):
            refused = ask_as("tokens", method, path, body, **({"If-Match": '"2"'} if method == "PUT" else {}))
            assert refused.status_code == 429, (path, refused.text)
            assert int(refused.headers["retry-after"]) == owed // 10 + 1, path
        assert ask_as("two", "PUT", LIVE, {"version": 3}, **{"If-Match": '"2"'}).status_code == 200
        classified = [ask_as("two", "POST", "/v1/tasks/tone/classify", {"inputs": "late"}) for _ in range(2)]
        assert [answer.status_code for answer in classified] == [200, 429]
