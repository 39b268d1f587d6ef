"""Shadows of a replica: what they compute, and how versions and shadows agree."""

import asyncio
import hashlib
from collections import Counter
from threading import current_thread, main_thread

import pytest

from bases import tiny_base
from onebert_server.access.keys import Holder
from onebert_server.access.principal import EVERY_SCOPE, Principal, root
from onebert_server.answering import answers
from onebert_server.answering.reading import items_of
from onebert_server.versions.version import State
from onebert_store.registry.grants import Quotas
from runtimes import (
    LIVE,
    TASKS,
    TEXTS,
    ask,
    classify,
    client,
    get,
    move,
    opened,
    opened_with_tasks,
    shadows_ended,
    upload,
)
from servers import Task, wait_until


@pytest.fixture
def runtime(tmp_path):
    with opened_with_tasks(tmp_path) as runtime:
        yield runtime


def test_a_shadow_computes_what_was_answered_and_is_compared_label_by_label(runtime):
    move(runtime, {"version": 1, "shadow": [{"version": 2}, {"version": 3}]})
    answers = [classify(runtime, text) for text in TEXTS * 3]
    assert {counts["version"] for counts in answers} == {1}
    best = [[max(scores, key=scores.get) for scores in map(task.scores, TEXTS)] for task in TASKS]

    def agreements():
        return get(runtime, f"{LIVE}/shadows").json()["shadows"]

    wait_until(lambda: all(counts["answers"] == 3 * len(TEXTS) for counts in agreements()))
    for counts, shadow in zip(agreements(), (2, 3), strict=True):
        pairs = Counter(zip(best[0], best[shadow - 1], strict=True))
        assert (counts["version"], counts["shadow"], counts["left_out"]) == (1, shadow, 0)
        assert counts["same"] == 3 * sum(count for (a, b), count in pairs.items() if a == b)
        assert {(two["label"], two["shadow"]): two["answers"] for two in counts["labels"]} == {
            pair: 3 * count for pair, count in pairs.items()
        }
    assert any(counts["same"] < counts["answers"] for counts in agreements()), "random tasks differ on some text"
    lines = get(runtime, "/metrics").text.splitlines()
    same = next(counts for counts in agreements() if counts["shadow"] == 2)["same"]
    assert f'onebert_shadow_answers_total{{same="true",shadow="2",task="tone",version="1"}} {float(same)}' in lines


@pytest.mark.parametrize("texts", [130, 1])
def test_all_parts_of_a_large_request_are_compared_and_read_beside_the_event_loop(tmp_path, monkeypatch, texts):
    read = set()

    def reading(*given):
        read.add(current_thread())
        return items_of(*given)

    monkeypatch.setattr(answers, "items_of", reading)
    with opened(tmp_path) as runtime:
        for seed in (1, 2):
            upload(runtime, "tone", Task(labels=[f"label {n}" for n in range(3000)], seed=seed))
        move(runtime, {"version": 1, "shadow": [{"version": 2}]})
        body = {"contents": [f"it is late {number}" for number in range(texts)]}
        answer = ask(runtime, "POST", "/t/tone/api/v1/text/contents", json=body)
        assert answer.status_code == 200, answer.text
        [agreement] = get(runtime, f"{LIVE}/shadows").json()["shadows"]
        assert (agreement["answers"], agreement["left_out"]) == (texts, 0)
    assert main_thread() not in read


def test_many_requests_at_once_are_all_compared_and_no_pin_is_left(runtime):
    move(runtime, {"version": 1, "shadow": [{"version": 2}]})

    async def flood():
        async with client(runtime) as web:
            body = {"items": [{"task": "tone", "text": text} for text in TEXTS]}
            done = [web.post("/v1/classify", json=body | {"partial": n % 2 == 0}) for n in range(20)]
            answers = await asyncio.gather(*done)
            await shadows_ended(runtime)
            return answers

    assert {answer.status_code for answer in asyncio.run(flood())} == {200}

    def counted():
        [shadow] = get(runtime, f"{LIVE}/shadows").json()["shadows"]
        return shadow["answers"] + shadow["left_out"]

    wait_until(lambda: counted() == 20 * len(TEXTS))
    wait_until(lambda: not any(host.bank.uses.any() for host in runtime.hosts))


def test_questions_of_a_shadow_that_is_not_in_memory_are_left_out_and_it_comes_back(runtime):
    move(runtime, {"version": 1, "shadow": [{"version": 2}]})
    shadow = runtime.directory.version("tone", 2)
    for other in (runtime.directory.version("tone", 3), shadow):
        while other.state is State.RESIDENT:
            runtime.directory.evict().release()
    for _ in range(3):
        classify(runtime)
    [counts] = get(runtime, f"{LIVE}/shadows").json()["shadows"]
    assert counts["left_out"] >= 1
    wait_until(lambda: shadow.state is State.RESIDENT)
    wait_until(lambda: classify(runtime) and get(runtime, f"{LIVE}/shadows").json()["shadows"][0]["answers"])


def test_a_request_that_a_shadow_cannot_answer_is_answered_without_it(tmp_path):
    """Its windows are longer than what the shadow reads."""
    with opened(tmp_path) as runtime:
        for version in (Task(seed=1), Task(seed=2, max_length=16)):
            upload(runtime, "tone", version)
        move(runtime, {"version": 1, "shadow": [{"version": 2}]})
        body = {"inputs": "it is late " * 40, "window": {"tokens": 32}}
        answer = ask(runtime, "POST", "/v1/tasks/tone/classify", json=body)
        assert answer.status_code == 200, answer.text
        wait_until(lambda: get(runtime, f"{LIVE}/shadows").json()["shadows"][0]["left_out"] == 1)


@pytest.mark.parametrize(("versions", "status"), [(("roberta", "bert"), 200), (("bert", "roberta"), 422)])
def test_a_text_in_which_a_base_finds_no_token_is_no_question_for_its_shadow_or_version(tmp_path, versions, status):
    with opened(tmp_path, base=f"{tiny_base('bert')},{tiny_base('roberta')}") as runtime:
        for family in versions:
            upload(runtime, "tone", Task(folder=tiny_base(family)))
        move(runtime, {"version": 1, "shadow": [{"version": 2}]})
        answer = ask(runtime, "POST", "/v1/tasks/tone/classify", json={"inputs": "\ufffd"})
        assert answer.status_code == status, answer.text
        wait_until(lambda: not any(host.bank.uses.any() for host in runtime.hosts))
        [shadow] = get(runtime, f"{LIVE}/shadows").json()["shadows"]
        assert (shadow["answers"], shadow["left_out"]) == (0, int(status == 200))


KEYS = {"owner": Principal("key:owner", EVERY_SCOPE, ("*",), quotas=Quotas(tokens=0.001)), "other": root("key:other")}


def test_a_shadow_counts_against_the_quotas_of_whoever_set_it_also_when_that_key_is_gone(tmp_path):
    def keys(runtime, *names):
        runtime.keys.replace({hashlib.sha256(name.encode()).digest(): Holder(KEYS[name]) for name in names})

    def ask_as(runtime, name, method, path, body=None, **headers):
        return ask(runtime, method, path, json=body, headers={"Authorization": f"Bearer {name}"} | headers)

    def classified(runtime, name):
        return ask_as(runtime, name, "POST", "/v1/tasks/tone/classify", {"inputs": TEXTS}).status_code

    def agreement(runtime):
        [shadow] = ask_as(runtime, "other", "GET", f"{LIVE}/shadows").json()["shadows"]
        return shadow["answers"], shadow["left_out"]

    with opened_with_tasks(tmp_path) as runtime:
        keys(runtime, *KEYS)
        body = {"version": 1, "shadow": [{"version": 2}]}
        assert ask_as(runtime, "owner", "PUT", LIVE, body, **{"If-Match": '"1"'}).status_code == 200
        assert [classified(runtime, "other") for _ in range(2)] == [200, 200]
        wait_until(lambda: agreement(runtime) == (1, 2 * len(TEXTS) - 1))
        assert classified(runtime, "owner") == 429
    with opened(tmp_path) as runtime:
        keys(runtime, "other")
        assert classified(runtime, "other") == 200
        wait_until(lambda: agreement(runtime) == (1, len(TEXTS) - 1))


def test_entities_of_a_shadow_agree_if_their_slices_do(tmp_path):
    labels = ["O", "B-PER", "I-PER", "B-LOC"]
    tasks = [Task("bitfit", "none", labels, seed=seed, task_type="token") for seed in (1, 2)]
    with opened(tmp_path) as runtime:
        for task in tasks:
            upload(runtime, "tone", task)
        move(runtime, {"version": 1, "shadow": [{"version": 2}]})

        def entities(version):
            body = {"items": [{"task": f"tone@{version}", "text": text} for text in TEXTS]}
            results = ask(runtime, "POST", "/v1/classify", json=body).json()["results"]
            return [{(e["start"], e["end"], e["label"]) for e in result["entities"]} for result in results]

        for text in TEXTS:
            classify(runtime, text)
        wait_until(lambda: get(runtime, f"{LIVE}/shadows").json()["shadows"][0]["answers"] == len(TEXTS))
        [agreement] = get(runtime, f"{LIVE}/shadows").json()["shadows"]
        alike = [live == shadow for live, shadow in zip(entities(1), entities(2), strict=True)]
        assert agreement["same"] == sum(alike) < len(TEXTS)
