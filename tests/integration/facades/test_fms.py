"""FMS detectors on real servers: requests as the orchestrator and NeMo Guardrails send them, and the answers they read.

No client of them can be had as a package, so the shapes are those of the orchestrator's OpenAPI document; the numbers
are the plain Hugging Face model's.
"""

import httpx
import pytest
from scipy.special import expit, softmax

from facade_tasks import assert_best_first
from servers import Task, layouts

pytestmark = layouts

TEXT = "please help, my order is late"
LABELS = ["safe", "unsafe", "other"]
BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]


def decided(**decision):
    return {"format": 2, "decision": decision}


STORED = {
    "plain": Task(seed=1, labels=LABELS),
    "guard": Task(seed=1, labels=LABELS, **decided(positives=["unsafe", "other"])),
    "tuned": Task(seed=1, labels=LABELS, **decided(positives=["unsafe"], thresholds={"unsafe": 0.01})),
    "many": Task(seed=2, labels=LABELS, task_type="multi_label"),
    "unsure": Task(seed=1, labels=LABELS, **decided(abstain={"below": 1.0})),
    "ner": Task("spafit", "none", labels=BIO, seed=2, task_type="token"),
    "places": Task("spafit", "none", labels=BIO, seed=2, task_type="token", **decided(positives=["B-LOC", "I-LOC"])),
    "value": Task(seed=3, labels=["worth"], task_type="regression"),
}


@pytest.fixture(scope="module")
def web(server):
    with httpx.Client(base_url=server.url, timeout=180) as client:
        yield client


def ask(web, task, body, path="contents", status=200):
    answer = web.post(f"/api/v1/text/{path}", json=body, headers={"detector-id": task, "x-model-name": task})
    assert answer.status_code == status, answer.text
    return answer.json()


def probabilities(task, *texts):
    activate = expit if STORED[task].manifest["task_type"] == "multi_label" else softmax
    return dict(zip(STORED[task].manifest["labels"], activate(STORED[task].logits(*texts)), strict=True))


def assert_scores(detections, expected):
    assert_best_first(
        {detection["detection_type"]: detection["score"] for detection in detections}, expected, within=1e-5
    )


def test_a_request_of_the_orchestrator_and_its_answer(web):
    detections = ask(web, "plain", {"contents": [TEXT, "  "], "detector_params": {"threshold": 0.0}})
    assert detections[1] == []
    assert_scores(detections[0], probabilities("plain", TEXT))
    digest = web.get("/v1/tasks/plain/versions/1").json()["digest"]
    for detection in detections[0]:
        assert detection == {
            "start": 0,
            "end": len(TEXT),
            "text": TEXT,
            "detection": "plain",
            "detection_type": detection["detection_type"],
            "score": detection["score"],
            "evidence": [],
            "metadata": {"version": 1, "digest": digest},
        }


@pytest.mark.parametrize(
    ("task", "threshold", "labels", "over"),
    [
        ("plain", None, LABELS, 0.5),
        ("tuned", None, ["unsafe"], 0.01),
        ("tuned", 0.9, ["unsafe"], 0.9),
    ],
)
def test_only_what_is_over_the_threshold_is_detected(web, task, threshold, labels, over):
    params = {} if threshold is None else {"threshold": threshold}
    texts = [TEXT, "what a day", "I am so happy about it"]
    for text, detections in zip(texts, ask(web, task, {"contents": texts, "detector_params": params}), strict=True):
        scores = probabilities(task, text)
        assert_scores(detections, {label: scores[label] for label in labels if scores[label] > over})


@pytest.mark.parametrize(("task", "kinds"), [("ner", {"PER", "LOC"}), ("places", {"LOC"})])
def test_token_tasks_give_spans_of_the_text_in_code_points(web, task, kinds):
    text = "💬 Anna met Bob in Ulm, and then they left for Rom 🚆 together, said Carl."
    native = web.post(f"/v1/tasks/{task}/classify", json={"inputs": text}).json()["results"][0]["entities"]
    expected = [tuple(entity.values()) for entity in native if entity["label"] in kinds]
    [detections] = ask(web, task, {"contents": [text]})
    assert [
        tuple(detection[name] for name in ("start", "end", "detection_type", "score")) for detection in detections
    ] == expected
    assert detections
    assert all(detection["text"] == text[detection["start"] : detection["end"]] for detection in detections)
    middle = sorted(detection["score"] for detection in detections)[len(detections) // 2]
    [above] = ask(web, task, {"contents": [text], "detector_params": {"threshold": middle}})
    assert above == [detection for detection in detections if detection["score"] > middle]


def test_a_chat_is_its_last_two_messages(web):
    system = {"role": "system", "content": "be kind"}
    message = {"role": "user", "content": [{"type": "text", "text": TEXT}]}
    answered = {"role": "assistant", "content": "we are sorry", "name": "shop"}
    rest = {"tools": [], "detector_params": {"threshold": 0.0}}
    alone = ask(web, "plain", {"messages": [system, message], **rest}, "chat")
    assert_scores(alone, probabilities("plain", TEXT))
    pair = ask(
        web, "plain", {"messages": [system, {"role": "user", "content": "hello"}, message, answered], **rest}, "chat"
    )
    assert_scores(pair, probabilities("plain", TEXT, "we are sorry"))


@pytest.mark.parametrize(
    ("task", "path", "body", "status", "says"),
    [
        ("nobody", "contents", {"contents": [TEXT]}, 404, "nobody"),
        ("plain", "contents", {"contents": [TEXT], "detector_params": {"language": "en"}}, 422, "language"),
        ("value", "contents", {"contents": [TEXT]}, 422, "regression"),
        ("plain", "chat", {"messages": [{"role": "system", "content": "be kind"}]}, 422, "messages"),
    ],
)
def test_errors_are_in_the_form_that_the_orchestrator_reads(web, task, path, body, status, says):
    """Which reads `code` as a number."""
    error = ask(web, task, body, path, status)
    assert error.keys() == {"code", "message"}
    assert error["code"] == status
    assert says in error["message"]


def test_a_regression_is_told_the_value_that_counts(web):
    value = float(STORED["value"].logits(TEXT)[0])
    for threshold, count in ((value - 0.1, 1), (value + 0.1, 0)):
        [detections] = ask(web, "value", {"contents": [TEXT], "detector_params": {"threshold": threshold}})
        assert len(detections) == count
