"""A task that decides for itself, and requests that decide otherwise: as JSON, and as the client gives it."""

import numpy as np
import pytest
from scipy.special import expit, logsumexp, softmax

import onebert
from onebert_store.errors import InvalidInput
from servers import Task, layouts, tokenizer

pytestmark = layouts

LONG = " ".join(["the parcel was late and nobody said sorry"] * 40)
DECISION = {
    "temperature": 2.0,
    "thresholds": {"label 0": 0.2, "label 2": 1.0},
    "positives": ["label 0"],
    "abstain": {"below": 1.0},
    "window": {"tokens": 16, "overlap": 4, "reduction": "mean"},
}


@pytest.fixture(scope="module")
def tasks(client):
    made = {
        "decided": Task(seed=3, format=2, decision=DECISION),
        "plain": Task("lora", seed=4),
        "several": Task("frozen", seed=5, task_type="multi_label"),
        "number": Task("frozen", labels=1, seed=6, task_type="regression"),
    }
    for name, task in made.items():
        client.push(name, task.with_golden().file)
    return made


def windows_of(task, text, tokens, overlap):
    """Logits of the plain model, of each window that Hugging Face makes."""
    encoded = tokenizer()(
        text,
        max_length=tokens,
        stride=overlap,
        truncation=True,
        return_overflowing_tokens=True,
        return_token_type_ids=True,
    )
    both = zip(encoded["input_ids"], encoded["token_type_ids"], strict=True)
    return np.stack([task.reference.logits(ids, types).numpy().astype(np.float64) for ids, types in both])


def ask(client, **body):
    return client.send("POST", "/v1/classify", json=body).json()["results"]


def test_the_manifest_decides(client, tasks):
    [result] = ask(client, items=[{"task": "decided", "text": LONG}])
    logits = windows_of(tasks["decided"], LONG, 16, 4)
    scores = softmax(logits / 2.0, axis=-1).mean(axis=0)
    got = [result["scores"][f"label {i}"] for i in range(3)]
    np.testing.assert_allclose(got, scores, atol=1e-4)
    assert list(result["scores"].values()) == sorted(got, reverse=True)
    assert result["labels"] == (["label 0"] if scores[0] > 0.2 else [])
    assert (result["abstained"], result["truncated"], result["windows"]) == (True, False, len(logits))
    assert result["tokens"] == len(tokenizer()(LONG)["input_ids"])
    manifest = client.version("decided", 1)["manifest"]
    assert manifest["format"] == 2
    assert manifest["decision"]["positives"] == ["label 0"]


def test_nothing_is_added_where_nothing_is_decided(client, tasks):
    [result] = ask(client, items=[{"task": "plain", "text": LONG}])
    assert result.keys() == {"label", "score", "scores", "tokens", "truncated", "task", "version", "digest"}
    assert result["truncated"] is True


def test_a_request_decides_otherwise_on_every_route(client, tasks):
    options = {"activation": "none", "threshold": 0.0, "window": {"tokens": 20, "overlap": 5, "reduction": "max"}}
    logits = windows_of(tasks["plain"], LONG, 20, 5).max(axis=0)
    over = sorted((f"label {i}" for i in range(3) if logits[i] > 0), key=lambda label: -logits[int(label[-1])])
    answer = client.send("POST", "/v1/tasks/plain/classify", json={"inputs": LONG, **options}).json()["results"][0]
    [two] = ask(client, items=[{"task": "plain", "text": LONG}], **options)
    [three] = client.send("POST", "/v1/fanout", json={"text": LONG, "tasks": ["plain"], **options}).json()["results"]
    with onebert.Client(str(client._http.base_url)) as typed:
        four = onebert.as_dict(typed.classify("plain", LONG, **options))
    for result in (answer, two, three, four):
        np.testing.assert_allclose([result["scores"][f"label {i}"] for i in range(3)], logits, atol=1e-4)
        assert result["labels"] == over
        assert not result["truncated"]
    asked = {"energy": True, "window": options["window"]}
    [known] = ask(client, items=[{"task": "plain", "text": LONG}], **asked)
    surest = logsumexp(windows_of(tasks["plain"], LONG, 20, 5), axis=-1).max()
    assert known["energy"] == pytest.approx(-surest, abs=1e-4)
    with onebert.Client(str(client._http.base_url)) as typed:
        assert typed.classify("plain", LONG, **asked).energy == known["energy"]
        everywhere = typed.fanout("late", ["*"], energy=True)
    assert {answer.task for answer in everywhere} >= {"plain", "several"}
    assert "number" not in {answer.task for answer in everywhere}
    assert all(answer.energy is not None for answer in everywhere)
    [sigmoid] = ask(client, items=[{"task": "plain", "text": "late"}], activation="sigmoid")
    np.testing.assert_allclose(sigmoid["score"], expit(tasks["plain"].logits("late")).max(), atol=1e-4)


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        ({"threshold": "0.5"}, "threshold"),
        ({"window": {"tokens": 7}}, "window.tokens"),
        ({"window": {"tokens": 16, "overlap": 9}}, "overlap is at most half of tokens"),
        ({"window": {"tokens": 16, "reduction": "union"}}, "has no reduction union"),
        ({"timeout_ms": 0}, "timeout_ms"),
        ({"partial": "yes"}, "partial"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_refused_by_name(client, tasks, body, reason):
    with pytest.raises(InvalidInput) as caught:
        ask(client, items=[{"task": "plain", "text": "late"}], **body)
    assert reason in caught.value.detail
    with pytest.raises(InvalidInput):
        ask(client, items=[{"task": "number", "text": "late"}], activation="none")
    with pytest.raises(InvalidInput, match="a regression task and has no energy"):
        ask(client, items=[{"task": "number", "text": "late"}], energy=True)


def test_one_task_answers_whole_and_says_so(client, tasks):
    """A client that says of every request that it wants all of the answer is answered; one that does not is told."""
    path = "/v1/tasks/plain/classify"
    assert client.send("POST", path, json={"inputs": "late", "partial": False}).status_code == 200
    with pytest.raises(InvalidInput, match="partial: a request for one task is answered whole; /v1/classify takes"):
        client.send("POST", path, json={"inputs": "late", "partial": True})


def test_a_partial_answer_names_what_is_missing(client, tasks):
    items = [{"task": name, "text": "it is late"} for name in ("plain", "nobody", "number@9", "several")]
    results = ask(client, items=items, partial=True, timeout_ms=180_000)
    assert [answer["task"] for answer in results] == ["plain", "nobody", "number@9", "several"]
    assert [answer.get("error", {}).get("code") for answer in results] == [
        None,
        "task-not-found",
        "version-not-found",
        None,
    ]
    assert results[1].keys() == {"task", "error"}
    for answer in (results[0], results[3]):
        [alone] = ask(client, items=[{"task": answer["task"], "text": "it is late"}])
        assert answer["label"] == alone["label"]
        assert answer["score"] == pytest.approx(alone["score"], abs=1e-5)
    with onebert.Client(str(client._http.base_url)) as typed:
        answers = typed.fanout("it is late", ["nobody", "plain"], partial=True)
    assert answers[0].error.code == "task-not-found"
    assert (answers[0].version, answers[1].version) == (None, 1)
    with pytest.raises(InvalidInput, match="tasks that are named"):
        client.send("POST", "/v1/fanout", json={"text": "late", "tasks": ["*"], "partial": True})


def test_a_body_may_say_how_long_its_answer_is_of_use(client, tasks):
    body = {"items": [{"task": "plain", "text": LONG}] * 64, "timeout_ms": 1}
    answer = client._http.post("/v1/classify", json=body)
    assert (answer.status_code, answer.json()["code"]) == (504, "deadline-exceeded")
