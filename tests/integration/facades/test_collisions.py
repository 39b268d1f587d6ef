"""Façades beside each other: a path that several share answers each body's own, and all of them say one number."""

import asyncio
import random

import pytest

from onebert_server.facades.routes import facade_paths
from onebert_server.facades.table import facades
from tenants import Asker, tenants_runtime

TASK = "acme-tone"
TEXT = "please help my order is late"
WORDS = "please help my order is late nobody answers 💬 don't know naïve 42 % of it ... again".split()


@pytest.fixture(scope="module")
def asker(tmp_path_factory):
    with tenants_runtime(tmp_path_factory.mktemp("collisions")) as opened:
        yield Asker(opened)


def ask(asker, path, method="POST", **arguments):
    return asyncio.run(asker.ask("key-of-acme", method, path, **arguments))


def shown(scored):
    return {one["label"]: one["score"] for one in scored}


def in_order(labels, values):
    return dict(zip(labels, values, strict=True))


# Path below `/t/{task}` -> the body for a text, and the scores in its answer (`labels`: in the task's order).
SPEAKERS = {
    "hugging face": ("", lambda text: {"inputs": text}, lambda found, labels: shown(found[0])),
    "tei": ("/predict", lambda text: {"inputs": text}, lambda found, labels: shown(found)),
    "vllm": (
        "/classify",
        lambda text: {"input": text},
        lambda found, labels: in_order(labels, found["data"][0]["probs"]),
    ),
    "kserve": (
        f"/v1/models/{TASK}:predict",
        lambda text: {"instances": [text]},
        lambda found, labels: found["predictions"][0],
    ),
    "fms": (
        "/api/v1/text/contents",
        lambda text: {"contents": [text], "detector_params": {"threshold": 0.0}},
        lambda found, labels: {one["detection_type"]: one["score"] for one in found[0]},
    ),
    "router": (
        "/v1/classify",
        lambda text: {"input": text},
        lambda found, labels: in_order(found["labels"], found["results"][0]["probabilities"]),
    ),
    "router's bundle": (
        "/v1/bundle",
        lambda text: {"tasks": [{"id": "one", "classify": {"input": text}}]},
        lambda found, labels: in_order(labels, found["results"][0]["classify"]["results"][0]["probabilities"]),
    ),
    "router over HTTP": ("/classify", lambda text: {"inputs": text}, lambda found, labels: shown(found)),
}


@pytest.mark.parametrize("speaker", SPEAKERS)
def test_every_facade_says_the_numbers_of_the_native_route(asker, speaker):
    """To the last bit: no façade rounds, and none computes a score of its own."""
    path, body, read = SPEAKERS[speaker]
    draw = random.Random(speaker)
    for _ in range(8):
        text = " ".join(draw.choices(WORDS, k=draw.randint(1, 8)))
        result = ask(asker, f"/v1/tasks/{TASK}/classify", json={"inputs": text}).json()["results"][0]
        assert not result["truncated"], "most façades read on in windows where the native route cuts"
        native = result["scores"]
        answer = ask(asker, f"/t/{TASK}{path}", json=body(text))
        assert answer.status_code == 200, answer.text
        assert read(answer.json(), sorted(native)) == native


# Path, body -> what tells whose answer it is, and whose error.
SHARED = [
    ("/classify", {"input": TEXT}, lambda found: found["object"] == "list"),
    ("/classify", {"inputs": TEXT}, lambda found: found[0].keys() == {"label", "score"}),
    ("/v1/classify", {"input": TEXT}, lambda found: found["head"] == "classifier"),
    ("/v1/classify", {"items": [{"text": TEXT, "task": TASK}]}, lambda found: found["results"][0]["version"] == 1),
    ("/classify", {"input": 1}, lambda found: "type" in found["error"]),
    ("/classify", {"inputs": 1}, lambda found: found["error"]["code"] == "invalid_request"),
    ("/v1/classify", {"input": 1}, lambda found: found["error"]["code"] == "invalid_request"),
    ("/v1/classify", {"items": 1}, lambda found: found["code"] == "invalid-input"),
    ("/v1/classify", {}, lambda found: found["code"] == "invalid-input"),
]


@pytest.mark.parametrize(("path", "body", "is_own"), SHARED)
def test_a_shared_path_answers_and_refuses_as_the_bodys_own(asker, path, body, is_own):
    answer = ask(asker, path, json=body, headers={"detector-id": TASK})
    assert answer.status_code in (200, 400, 422)
    assert is_own(answer.json())


# The page is at the one; the other, asked by GET, is the name of a model.
ELSEWHERE = {"/", "/v1/models/{model}:predict"}


@pytest.mark.parametrize("path", sorted({one.path for facade in facades() for one in facade.questions} - ELSEWHERE))
@pytest.mark.parametrize("method", ["GET", "HEAD", "PUT"])
def test_a_path_that_is_asked_by_post_says_so(asker, path, method):
    assert path in facade_paths()
    answer = ask(asker, path.format(model=TASK, version=1), method=method)
    assert answer.status_code == 405
    assert "POST" in answer.headers["allow"]
