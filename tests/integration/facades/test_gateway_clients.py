"""Clients of OpenAI and TEI, and NeMo Guardrails, in environments of their own, against a real server."""

import json
from contextlib import contextmanager

import pytest

from environments import python_environment
from facade_tasks import HARMS, TEXTS, moderating, sigmoids, telling
from servers import Server

pytestmark = pytest.mark.slow

KEY = "key-of-the-clients"


@contextmanager
def serving(folder, **settings):
    """The URL of a server with the tasks, with keys or without."""
    with Server(folder, **settings) as server:
        server.push({"harms": moderating(), "risk": telling()})
        yield server.url


@pytest.fixture(scope="module", params=[0, 1], ids=["one process", "front ends"])
def url(request, tmp_path_factory):
    with serving(tmp_path_factory.mktemp("clients"), api_keys=KEY, front_ends=request.param) as url:
        yield url


def test_openai(url):
    seen = python_environment("openai").run("openai.py", url, KEY, "harms", json.dumps(TEXTS))
    positives, thresholds = HARMS[:3], moderating().manifest["decision"]["thresholds"]
    assert seen["model"] == "harms@1"
    assert seen["results"] == seen["async"]
    for result, text in zip(seen["results"], TEXTS, strict=True):
        expected = sigmoids(moderating(), text)
        assert {name: result["scores"][name] for name in positives} == pytest.approx(
            {name: expected[name] for name in positives}, abs=1e-4
        )
        assert {name for name, applies in result["categories"].items() if applies} == {
            name for name in positives if expected[name] > thresholds[name]
        }
        # What the task does not judge is there, too, for the SDK's types.
        assert result["harassment"] is False
    assert seen["models"] == ["harms", "risk"]
    assert (seen["no_task"]["kind"], seen["no_task"]["status"]) == ("NotFoundError", 404)
    assert "there-is-none" in seen["no_task"]["body"]["message"]


def test_tei(url):
    seen = python_environment("tei").run("tei.py", url, KEY, "risk", json.dumps(TEXTS))
    task = telling()
    expected = {
        "batch": [task.scores(text) for text in TEXTS],
        "pair": [task.scores(*TEXTS[:2])],
        "async": [task.scores(text) for text in TEXTS],
    }
    for name, answers in expected.items():
        assert seen[name] == [pytest.approx(answer, abs=1e-4) for answer in answers], name
    assert seen["healthy"]
    assert seen["info"]["server_model_type"] == "classifier"
    assert seen["info"]["server_model_metadata"]["id2label"] == dict(zip("01", task.manifest["labels"], strict=True))


def test_nemo_guardrails(tmp_path):
    """A configuration alone blocks what the task says; it cannot send a key to an address without TLS."""
    scores = [telling().scores(text) for text in TEXTS]
    named = {label: json.dumps([label]) for label in ("fine", "risky")}
    with serving(tmp_path) as url:
        nemo = python_environment("nemoguardrails")
        for engine in ("vllm", "kserve"):
            for label, blocked in named.items():
                output = nemo.run("nemoguardrails.py", url, engine, "risk", blocked, json.dumps(TEXTS))
                assert output == ["blocked" if score[label] > 0.5 else "passed" for score in scores]
            # What it could not ask it does not let through.
            assert nemo.run("nemoguardrails.py", url, engine, "nobody", named["fine"], '["a"]') == ["blocked"]
        # As a detector the URL names the task, whatever the model is called, and only positive labels are detected.
        positives = telling().manifest["decision"]["positives"]
        for label, blocked in named.items():
            output = nemo.run("nemoguardrails.py", f"{url}/t/risk", "fms", "any", blocked, json.dumps(TEXTS))
            assert output == ["blocked" if label in positives and score[label] > 0.5 else "passed" for score in scores]
        assert nemo.run("nemoguardrails.py", f"{url}/t/nobody", "fms", "any", named["fine"], '["a"]') == ["blocked"]
