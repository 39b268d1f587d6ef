"""The vLLM Semantic Router on real servers: the contract of its model runtime, and `/classify` over HTTP.

No client of it can be had as a package, so the shapes are those of the contract's OpenAPI document (2.3.0) and of the
router's own checks; the numbers are the plain Hugging Face model's.
"""

import httpx
import numpy as np
import pytest
from scipy.special import softmax

from servers import MAX_LENGTH, Task, layouts, tokenizer

pytestmark = layouts

TEXT = "please help, my order is late"
LONG = "my order is late and nobody helps me with it at all, which is too bad. " * 8
LABELS = ["safe", "unsafe", "other"]
BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]
WINDOW = {"tokens": 24, "overlap": 8}


def decided(**decision):
    return {"format": 2, "decision": decision}


STORED = {
    "plain": Task(seed=1, labels=LABELS),
    "many": Task(seed=2, labels=LABELS, task_type="multi_label", **decided(thresholds={"unsafe": 0.2})),
    "halu": Task(seed=1, labels=LABELS, **decided(positives=LABELS[:2], thresholds={"safe": 0.0, "unsafe": 0.0})),
    "windowed": Task(seed=1, labels=LABELS, **decided(window={**WINDOW, "reduction": "mean"})),
    "ner": Task("spafit", "none", labels=BIO, seed=2, task_type="token"),
    "value": Task(seed=3, labels=["worth"], task_type="regression"),
}


@pytest.fixture(scope="module")
def web(server):
    with httpx.Client(base_url=server.url, timeout=180) as client:
        yield client


def post(web, path, body, status=200):
    answer = web.post(path, json=body)
    assert answer.status_code == status, answer.text
    return answer.json()


def classify(web, model, given, status=200, **options):
    return post(web, "/v1/classify", {"model": model, "input": given, "options": options}, status)


def length(*texts):
    return len(tokenizer()(*texts)["input_ids"])


def test_a_sequence_head_answers_texts_and_pairs(web):
    pair = {"text": TEXT, "text_pair": "we are sorry"}
    answers = classify(
        web, "plain", [TEXT, pair, {"text": LONG}], profile="exact", return_meta=True, return_tokens=False
    )
    first, second, third = answers.pop("results")
    meta = answers.pop("meta")
    assert {"model_id", "revision", "model_sha256", "profile", "queue_ms", "compute_ms", "head"} <= meta.keys()
    used = length(TEXT) + length(TEXT, "we are sorry") + MAX_LENGTH
    assert answers == {
        "model": "plain",
        "head": "classifier",
        "kind": "sequence",
        "labels": LABELS,
        "usage": {"input_tokens": used, "output_tokens": 0},
    }
    for index, (result, texts) in enumerate(((first, [TEXT]), (second, [TEXT, "we are sorry"]))):
        expected = softmax(STORED["plain"].logits(*texts))
        np.testing.assert_allclose(result.pop("probabilities"), expected, atol=1e-5)
        tokens = length(*texts)
        assert result == {
            "index": index,
            "label": LABELS[expected.argmax()],
            "input": {"tokens": tokens, "processed_tokens": tokens, "truncated": False},
        }
    assert third["input"] == {
        "tokens": MAX_LENGTH + 1,
        "tokens_lower_bound": True,
        "processed_tokens": MAX_LENGTH,
        "truncated": True,
    }


def test_a_token_head_gives_spans_in_code_points(web):
    text = "💬 Anna met Bob in Ulm, and they left for Rom 🚆"
    native = post(web, "/v1/tasks/ner/classify", {"inputs": text})["results"][0]["entities"]
    answers = classify(web, "ner", text)
    assert (answers["kind"], answers["labels"]) == ("token", BIO)
    spans = answers["results"][0]["spans"]
    assert [(entity["start"], entity["end"], entity["label"], entity["probability"]) for entity in spans] == [
        (entity["start"], entity["end"], entity["label"], entity["score"]) for entity in native
    ]
    assert all(entity["text"] == text[entity["start"] : entity["end"]] for entity in spans)
    threshold = sorted(entity["probability"] for entity in spans)[len(spans) // 2]
    above = classify(web, "ner", text, threshold=threshold)["results"][0]["spans"]
    assert above == [entity for entity in spans if entity["probability"] > threshold]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"overflow": "reject"}, "max_length_exceeded"),
        ({"overflow": "reject", "max_tokens": 5}, "max_length_exceeded"),
        ({"overflow": "window", "max_tokens": 60}, "scan_budget_exceeded"),
    ],
)
def test_an_input_that_is_too_long_has_an_error_of_its_own(web, options, error):
    results = classify(web, "plain", [LONG, "late"], **options)["results"]
    assert results[0] == {"index": 0, "error": error}
    assert results[1]["label"] in LABELS
    assert web.post("/v1/classify", json={"model": "plain", "input": LONG}).json()["results"][0]["input"]["truncated"]


def test_windows_read_a_text_to_its_end(web):
    [result] = classify(web, "plain", LONG, overflow="window", window=WINDOW)["results"]
    asked = {"inputs": LONG, "window": WINDOW}
    native = post(web, "/v1/tasks/plain/classify", asked)["results"][0]
    assert result["probabilities"] == [native["scores"][label] for label in LABELS]
    tokens = length(LONG)
    windows = {"tokens": tokens, "processed_tokens": tokens, "truncated": False, "windows": native["windows"]}
    assert result["input"] == windows
    assert native["windows"] > 1
    for model in ("plain", "windowed"):
        [result] = classify(web, model, LONG, overflow="window")["results"]
        assert not result["input"]["truncated"]


def test_a_bundle_answers_each_task_as_if_it_came_alone(web):
    tasks = [
        {"id": "a", "classify": {"model": "plain", "input": TEXT}},
        {"id": "b", "classify": {"model": "nobody", "input": TEXT}},
        {"id": "c", "classify": {"model": "many", "input": [TEXT], "colour": 1}},
        {"id": "d", "rerank": {"query": "x", "documents": ["y"]}},
        {"id": "e", "classify": {"model": "value", "input": TEXT}},
        {"id": "f", "classify": {"model": "ner", "input": TEXT, "options": {"threshold": 0.1}}},
    ]
    results = post(web, "/v1/bundle", {"tasks": tasks, "options": {"deadline_ms": 120_000}})["results"]
    assert [(result["id"], result["status"]) for result in results] == [
        ("a", 200),
        ("b", 404),
        ("c", 400),
        ("d", 422),
        ("e", 422),
        ("f", 200),
    ]
    for result, task in zip(results, tasks, strict=True):
        if result["status"] == 200:
            assert result == {"id": task["id"], "status": 200, "classify": post(web, "/v1/classify", task["classify"])}
        else:
            assert result.keys() == {"id", "status", "error"}
    codes = [result["error"]["code"] for result in results if result["status"] != 200]
    assert codes == ["model_not_found", "invalid_request", "unsupported_surface", "unsupported_surface"]
    assert "colour" in results[2]["error"]["message"]


def test_the_flat_form_gives_spans_of_a_token_task(web):
    answer = post(web, "/t/ner@live/classify", {"inputs": LONG})
    assert (answer.keys(), answer["model"]) == ({"spans", "model"}, "ner")
    assert answer["spans"]
    seen = {(span["label"], span["start"], span["end"]) for span in answer["spans"]}
    assert len(seen) == len(answer["spans"])
    for span in answer["spans"]:
        assert span["text"] == LONG[span["start"] : span["end"]]
        assert span["label"] in ("PER", "LOC")
        assert 0 <= span["score"] <= 1


def test_a_grounded_answer_is_flagged_as_a_whole(web):
    given = {"inputs": "it is blue", "parameters": {"context": "The sky.", "question": "Which colour?"}}
    answer = post(web, "/t/halu/classify", given)
    expected = dict(zip(LABELS, softmax(STORED["halu"].logits("Which colour?\n\nThe sky.", "it is blue")), strict=True))
    assert answer["model"] == "halu"
    assert {span["label"]: span["score"] for span in answer["spans"]} == {
        label: pytest.approx(expected[label], abs=1e-5) for label in ("safe", "unsafe")
    }
    assert {(span["start"], span["end"], span["text"]) for span in answer["spans"]} == {(0, 10, "it is blue")}


INVALID = 400, "invalid_request"


@pytest.mark.parametrize(
    ("path", "body", "status", "code"),
    [
        ("/v1/classify", {"model": "nobody", "input": TEXT}, 404, "model_not_found"),
        ("/v1/classify", {"model": "plain", "input": TEXT, "options": {"threshold": 0.5}}, *INVALID),
        ("/v1/classify", {"model": "plain", "input": LONG, "options": {"max_tokens": 9}}, *INVALID),
        ("/v1/classify", {"model": "windowed", "input": LONG, "options": {"overflow": "truncate"}}, *INVALID),
        ("/v1/classify", {"model": "value", "input": TEXT}, 422, "unsupported_surface"),
        ("/v1/bundle", {"tasks": [{"id": "a", "classify": {}, "rerank": {}}]}, *INVALID),
        ("/v1/bundle", {"tasks": [{"id": "a", "classify": {}}] * 2}, *INVALID),
        ("/v1/bundle", {"tasks": [{"id": f"{i}", "classify": {}} for i in range(65)]}, 413, "request_too_large"),
        ("/t/many/classify", {"inputs": TEXT}, 422, "unsupported_surface"),
    ],
)
def test_errors_are_those_of_the_contract(web, path, body, status, code):
    error = post(web, path, body, status)
    assert error.keys() == {"error"}
    assert error["error"].keys() == {"code", "message"}
    assert error["error"]["code"] == code


def test_models_are_described_as_the_router_checks_them(web):
    listed = web.get("/v1/models").json()
    assert listed["limits"] == {"max_bundle_tasks": 64, "max_request_bytes": 2**20}
    assert (listed["object"], listed["api_version"]) == ("list", "2.3.0")
    models = {model["id"]: model for model in listed["data"]}
    assert models.keys() == STORED.keys()
    heads = {name: model["heads"] for name, model in models.items()}
    head = {"name": "classifier", "default_threshold": None, "overflow": "truncate", "window": None, "reduction": None}
    text, both = {"inputs": ["text"], "thresholds": None}, {"inputs": ["text", "pair"]}
    plain = [{**head, **both, "kind": "sequence", "labels": LABELS, "thresholds": None}]
    assert heads["plain"] == plain
    assert heads["many"] == [{**head, **both, "kind": "scores", "labels": LABELS, "thresholds": [0.5, 0.2, 0.5]}]
    assert heads["ner"] == [{**head, **text, "kind": "token", "labels": BIO}]
    assert heads["windowed"] == [{**plain[0], "overflow": "window", "window": WINDOW}]
    for name, model in models.items():
        surfaces = [] if name == "value" else ["classify"]
        assert (model["object"], model["surfaces"], len(model["heads"])) == ("model", surfaces, len(surfaces))
        assert (model["family"], model["ready"], model["status"], model["reason"]) == (
            "task_heads",
            True,
            "ready",
            None,
        )
        assert model["golden"] == {"status": "matched"}
        assert model["limits"] == {"max_input_tokens": MAX_LENGTH, "max_inputs": 64}
        stored = web.get(f"/v1/tasks/{name}/versions/1").json()["digest"]
        assert (model["revision"], f"sha256:{model['model_sha256']}") == ("1", stored)
    [alone] = web.get("/t/ner@live/v1/models").json()["data"]
    assert (alone["id"], alone["heads"]) == ("ner@live", heads["ner"])
