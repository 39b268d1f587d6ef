"""FMS detectors on real servers: requests as the orchestrator and NeMo Guardrails send them, and the answers they read.

No client of them can be had as a package, so the shapes are those of the orchestrator's OpenAPI document; the numbers
are the plain Hugging Face model's.
"""

import httpx
import numpy as np
import pytest
from scipy.special import expit, softmax

from facade_tasks import assert_best_first
from servers import Task, layouts, tokenizer

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
    "qa": Task("bitfit", "none", labels=["start", "end"], seed=3, task_type="span"),
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
    assert_best_first({one["detection_type"]: one["score"] for one in detections}, expected, within=1e-5)


def test_a_request_of_the_orchestrator_and_its_answer(web):
    found = ask(web, "plain", {"contents": [TEXT, "  "], "detector_params": {"threshold": 0.0}})
    assert found[1] == []
    assert_scores(found[0], probabilities("plain", TEXT))
    digest = web.get("/v1/tasks/plain/versions/1").json()["digest"]
    for one in found[0]:
        assert one == {
            "start": 0,
            "end": len(TEXT),
            "text": TEXT,
            "detection": "plain",
            "detection_type": one["detection_type"],
            "score": one["score"],
            "evidence": [],
            "metadata": {"version": 1, "digest": digest},
        }


@pytest.mark.parametrize(
    ("task", "threshold", "labels", "over"),
    [
        ("plain", None, LABELS, 0.5),
        ("plain", 0.05, LABELS, 0.05),
        ("guard", None, ["unsafe", "other"], 0.5),
        ("tuned", None, ["unsafe"], 0.01),
        ("tuned", 0.9, ["unsafe"], 0.9),
        ("many", None, LABELS, 0.5),
    ],
)
def test_only_what_is_over_the_threshold_is_detected(web, task, threshold, labels, over):
    params = {} if threshold is None else {"threshold": threshold}
    texts = [TEXT, "what a day", "I am so happy about it"]
    for text, found in zip(texts, ask(web, task, {"contents": texts, "detector_params": params}), strict=True):
        scores = probabilities(task, text)
        assert_scores(found, {label: scores[label] for label in labels if scores[label] > over})


def entities(task, text):
    """(start, end, kind, score) of every entity, read from the plain model's logits word by word."""
    encoding = tokenizer()(text, truncation=True, max_length=STORED[task].manifest["max_length"])
    scores, numbers = softmax(STORED[task].logits(text), axis=-1), encoding.word_ids(0)
    found, before = [], "O"
    for number in sorted({number for number in numbers if number is not None}):
        at = [index for index, other in enumerate(numbers) if other == number]
        label, score = BIO[scores[at[0]].argmax()], scores[at[0]].max()
        start, end = encoding.token_to_chars(0, at[0]).start, encoding.token_to_chars(0, at[-1]).end
        if label != "O":
            if label[0] == "I" and before[2:] == label[2:]:
                found[-1][1], found[-1][3] = end, [*found[-1][3], score]
            else:
                found.append([start, end, label[2:], [score]])
        before = label
    return [(start, end, kind, np.mean(each)) for start, end, kind, each in found]


@pytest.mark.parametrize(("task", "kinds"), [("ner", {"PER", "LOC"}), ("places", {"LOC"})])
def test_token_tasks_give_spans_of_the_text_in_code_points(web, task, kinds):
    text = "💬 Anna met Bob in Ulm, and then they left for Rom 🚆 together, said Carl."
    expected = [one for one in entities(task, text) if one[2] in kinds]
    [found] = ask(web, task, {"contents": [text]})
    assert [(one["start"], one["end"], one["detection_type"]) for one in found] == [one[:3] for one in expected]
    np.testing.assert_allclose([one["score"] for one in found], [one[3] for one in expected], atol=1e-5)
    assert found
    assert all(one["text"] == text[one["start"] : one["end"]] for one in found)
    middle = sorted(one["score"] for one in found)[len(found) // 2]
    [above] = ask(web, task, {"contents": [text], "detector_params": {"threshold": middle}})
    assert above == [one for one in found if one["score"] > middle]


def test_pairs_are_detected_without_spans(web):
    body = {"prompt": TEXT, "generated_text": "we are sorry", "detector_params": {"threshold": 0.0}}
    found = ask(web, "plain", body, "generation")
    assert_scores(found, probabilities("plain", TEXT, "we are sorry"))
    assert {key for one in found for key in one} == {"detection", "detection_type", "score", "evidence", "metadata"}


def test_a_chat_is_its_last_two_messages(web):
    system = {"role": "system", "content": "be kind"}
    said = {"role": "user", "content": [{"type": "text", "text": TEXT}]}
    answered = {"role": "assistant", "content": "we are sorry", "name": "shop"}
    rest = {"tools": [], "detector_params": {"threshold": 0.0}}
    alone = ask(web, "plain", {"messages": [system, said], **rest}, "chat")
    assert_scores(alone, probabilities("plain", TEXT))
    pair = ask(
        web, "plain", {"messages": [system, {"role": "user", "content": "hello"}, said, answered], **rest}, "chat"
    )
    assert_scores(pair, probabilities("plain", TEXT, "we are sorry"))


def test_what_a_task_does_not_know_is_told_beside_it(web):
    [found] = ask(web, "unsure", {"contents": [TEXT], "detector_params": {"threshold": 0.0}})
    assert {one["metadata"]["abstained"] for one in found} == {True}


def test_as_many_texts_as_sentences_of_a_long_text(web):
    texts = [f"{TEXT} {number}" for number in range(150)]
    found = ask(web, "many", {"contents": texts, "detector_params": {"threshold": 0.0}})
    assert len(found) == len(texts)
    for number in (0, 64, 149):
        assert_scores(found[number], probabilities("many", texts[number]))


@pytest.mark.parametrize(
    ("task", "path", "body", "status", "says"),
    [
        ("nobody", "contents", {"contents": [TEXT]}, 404, "nobody"),
        ("plain", "contents", {"contents": [TEXT], "detector_params": {"language": "en"}}, 422, "language"),
        ("qa", "contents", {"contents": [TEXT]}, 422, "question"),
        ("value", "contents", {"contents": [TEXT]}, 422, "regression"),
        ("ner", "generation", {"prompt": "a", "generated_text": "b"}, 422, "one text"),
        ("plain", "chat", {"messages": [{"role": "system", "content": "be kind"}]}, 422, "messages"),
        ("plain", "chat", {"messages": [{"role": "user", "content": "a"}], "tools": [{}]}, 422, "tools"),
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
        [found] = ask(web, "value", {"contents": [TEXT], "detector_params": {"threshold": threshold}})
        assert len(found) == count
