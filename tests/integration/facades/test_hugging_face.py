"""Hugging Face's own clients against this server; what they get is what the plain model with the weights computes."""

import httpx
import numpy as np
import pytest
from huggingface_hub import InferenceClient, constants
from huggingface_hub.errors import HfHubHTTPError
from transformers.pipelines.token_classification import TokenClassificationPipeline

from environments import node_environment
from facade_tasks import LONG, assert_best_first
from servers import tokenizer

TEXT = "please help my order is late"
CONTEXT = "the order was sent to the wrong town on a late evening and came back"
# Tokens that one window shares with the next where nobody says how many: a quarter of what these tasks read at once.
SHARED = 12
# Answers are float32 sums in another order than the plain model's; they have been seen to differ by 1e-6.
CLOSE = {"atol": 1e-4, "rtol": 0}


@pytest.fixture(autouse=True)
def online(monkeypatch):
    """The whole suite runs without the Hub; these clients ask this machine alone."""
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)


def client(url, task):
    return InferenceClient(model=f"{url}/t/{task}", timeout=180)


def softmax(logits):
    exponentials = np.exp(logits - logits.max())
    return exponentials / exponentials.sum()


def assert_scores(answers, expected):
    assert_best_first({entry.label: entry.score for entry in answers}, expected)


@pytest.mark.parametrize("path", ["/t/tone", "/t/tone/", "/models/tone", "/models/tone@1", "/t/tone/models/tone"])
def test_text_classification_at_any_address(url, tasks, path):
    scores = InferenceClient(base_url=url + path, timeout=180).text_classification(TEXT)
    assert_scores(scores, tasks["tone"].scores(TEXT))


def test_text_classification_with_parameters(url, tasks):
    logits = dict(zip(tasks["several"].manifest["labels"], tasks["several"].logits(TEXT), strict=True))
    asks = client(url, "several").text_classification
    assert_scores(asks(TEXT), {name: 1 / (1 + np.exp(-logit)) for name, logit in logits.items()})
    assert_scores(asks(TEXT, function_to_apply="none"), logits)
    whole = dict(zip(logits, softmax(np.array(list(logits.values()))), strict=True))
    assert_scores(asks(TEXT, function_to_apply="softmax"), whole)
    [best] = asks(TEXT, top_k=1)
    assert best.label == max(logits, key=logits.get)
    [amount] = client(url, "amount").text_classification(TEXT)
    np.testing.assert_allclose(amount.score, tasks["amount"].logits(TEXT)[0], **CLOSE)


def words_of(task, text):
    """What the first token of each word says: label and probability, by the plain model."""
    encoded = tokenizer()(text, truncation=True, max_length=48, return_token_type_ids=True)
    logits = task.reference.logits(encoded["input_ids"], encoded["token_type_ids"]).numpy().astype(np.float64)
    names, ids = task.manifest["labels"], encoded.word_ids()
    firsts = [index for index, word in enumerate(ids) if word is not None and word != ids[index - 1]]
    return [(names[logits[i].argmax()], softmax(logits[i]).max()) for i in firsts]


def test_token_classification_word_by_word(url, tasks):
    expected = words_of(tasks["tags"], TEXT)
    words = client(url, "tags").token_classification(TEXT, aggregation_strategy="none", ignore_labels=[])
    assert [(word.entity, word.word) for word in words] == list(
        zip((w for w, _ in expected), TEXT.split(), strict=True)
    )
    np.testing.assert_allclose([word.score for word in words], [score for _, score in expected], **CLOSE)
    assert [TEXT[word.start : word.end] for word in words] == TEXT.split()
    words = client(url, "tags").token_classification(TEXT, aggregation_strategy="none")
    assert [word.entity for word in words] == [label for label, _ in expected if label != "O"]


class Joining(TokenClassificationPipeline):
    """The pipeline's own joining of parts, without a model."""

    def __init__(self):
        pass

    def group_sub_entities(self, entities):
        label = entities[0]["entity"].split("-", 1)[-1]
        return label, entities[0]["start"], entities[-1]["end"], np.mean([entity["score"] for entity in entities])


def pipelines_groups(task, text):
    """The entities that Hugging Face's own pipeline makes of the plain model's words."""
    parts, at = [], 0
    for (label, score), word in zip(words_of(task, text), text.split(), strict=True):
        start = text.index(word, at)
        at = start + len(word)
        parts.append({"entity": label, "score": score, "word": word, "start": start, "end": at})

    return Joining().group_entities(parts)


@pytest.mark.parametrize("strategy", [None, "simple", "first"])
@pytest.mark.parametrize("text", [TEXT, CONTEXT])
def test_token_classification_joins_words_as_the_pipeline_does(url, tasks, strategy, text):
    asked = {} if strategy is None else {"aggregation_strategy": strategy}
    words = client(url, "tags").token_classification(text, ignore_labels=[], **asked)
    expected = pipelines_groups(tasks["tags"], text)
    assert [(word.entity_group, word.start, word.end) for word in words] == [word[:3] for word in expected]
    np.testing.assert_allclose([word.score for word in words], [word[3] for word in expected], **CLOSE)
    assert all(word.word == text[word.start : word.end] for word in words)


def test_question_answering(url):
    question = "where was the order sent"
    native = httpx.post(
        f"{url}/v1/tasks/spans/classify",
        json={"inputs": {"text": question, "text_pair": CONTEXT}, "top_k": 3},
        timeout=180,
    ).json()["results"][0]["answers"]
    asks = client(url, "spans").question_answering
    best = asks(question=question, context=CONTEXT)
    assert (best.answer, best.start, best.end, best.score) == tuple(
        native[0][name] for name in ("text", "start", "end", "score")
    )
    assert best.answer == CONTEXT[best.start : best.end]
    several = asks(question=question, context=CONTEXT, top_k=3, handle_impossible_answer=False, align_to_words=False)
    assert [(span.start, span.end) for span in several] == [(span["start"], span["end"]) for span in native]


@pytest.mark.parametrize(("several", "template"), [(False, None), (True, None), (False, "it says {}!")])
def test_zero_shot_classification_as_the_pipeline_computes_it(url, tasks, several, template):
    labels = ["delivery", "money, late", "{weather}"]
    scores = client(url, "nli").zero_shot_classification(
        TEXT, labels, multi_label=several, hypothesis_template=template
    )
    logits = np.array(
        [tasks["nli"].logits(TEXT, (template or "This example is {}.").replace("{}", label)) for label in labels]
    )
    expected = [softmax(logit[[2, 0]])[1] for logit in logits] if several else softmax(logits[:, 0])
    assert_scores(scores, dict(zip(labels, expected, strict=True)))


def test_zero_shot_classification_with_two_labels(url, tasks):
    [answer] = client(url, "rte").zero_shot_classification(TEXT, ["delivery"])
    logits = tasks["rte"].logits(TEXT, "This example is delivery.")
    np.testing.assert_allclose(answer.score, softmax(logits)[1], **CLOSE)


def in_windows(url, task, inputs, **asked):
    """What the native route says of one input that it is asked to read to its end."""
    body = {"inputs": inputs, "window": {"overlap": SHARED}, **asked}
    [result] = httpx.post(f"{url}/v1/tasks/{task}/classify", json=body, timeout=180).json()["results"]
    assert result["windows"] > 1
    return result


def test_long_texts_are_read_to_their_end(url):
    """Cut, they would be answered by their beginnings, and nothing in these answers could say so."""
    scores = client(url, "tone").text_classification(LONG)
    assert {entry.label: entry.score for entry in scores} == in_windows(url, "tone", LONG)["scores"]
    words = client(url, "tags").token_classification(LONG, aggregation_strategy="none", ignore_labels=[])
    assert [(entry.start, entry.end, entry.entity, entry.score) for entry in words] == [
        (entry["start"], entry["end"], entry["label"], entry["score"])
        for entry in in_windows(url, "tags", LONG)["words"]
    ]
    assert [entry.word for entry in words] == LONG.split()
    spans = client(url, "spans").question_answering(question=TEXT, context=LONG, top_k=20)
    assert [(entry.answer, entry.start, entry.end, entry.score) for entry in spans] == [
        tuple(entry[name] for name in ("text", "start", "end", "score"))
        for entry in in_windows(url, "spans", {"text": TEXT, "text_pair": LONG}, top_k=20)["answers"]
    ]
    assert all(entry.answer == LONG[entry.start : entry.end] for entry in spans)


def test_a_text_without_room_for_its_candidates_is_refused(url):
    with pytest.raises(HfHubHTTPError, match="more than the 48 tokens that nli@1 reads"):
        client(url, "nli").zero_shot_classification(LONG, ["delivery", "money"])


ASKED = {"question": TEXT, "context": CONTEXT}


@pytest.mark.parametrize(
    ("task", "body", "says"),
    [
        ("tone", {"inputs": TEXT, "parameters": {"candidate_labels": ["a"]}}, "entailment"),
        ("nli", {"inputs": TEXT, "parameters": {"candidate_labels": ["a"], "top_k": 1}}, "top_k"),
        ("tags", {"inputs": TEXT, "parameters": {"aggregation_strategy": "max"}}, "aggregation_strategy"),
        ("spans", {"inputs": ASKED, "parameters": {"align_to_words": True}}, "align"),
        ("tone", {"inputs": ASKED}, "question"),
    ],
)
def test_what_would_change_the_answer_is_refused(url, task, body, says):
    answer = httpx.post(f"{url}/models/{task}", json=body, timeout=180)
    assert answer.status_code in (404, 422)
    assert list(answer.json()) == ["error"]
    assert says in answer.json()["error"]
    assert TEXT not in answer.text


def test_the_clients_own_error_holds_the_servers_words(url):
    with pytest.raises(HfHubHTTPError, match="there is no task"):
        client(url, "nothing").text_classification(TEXT)
    harmless = {"inputs": TEXT, "options": {"use_cache": False, "wait_for_model": True}, "parameters": None}
    assert httpx.post(f"{url}/models/tone", json=harmless, timeout=180).status_code == 200


@pytest.mark.slow
def test_the_javascript_client_gets_what_the_native_interface_says(url):
    seen = node_environment("hugging_face").run("hugging_face.mjs", url, TEXT, CONTEXT)

    def native(task, inputs, **asked):
        answer = httpx.post(f"{url}/v1/tasks/{task}/classify", json={"inputs": inputs, **asked}, timeout=180)
        return answer.json()["results"][0]

    assert {entry["label"]: entry["score"] for entry in seen["tone"]} == native("tone", TEXT)["scores"]
    assert len(seen["raw"]) == 2
    assert [entry["word"] for entry in seen["tags"]] == [TEXT[entry["start"] : entry["end"]] for entry in seen["tags"]]
    best = native("spans", {"text": TEXT, "text_pair": CONTEXT})["answers"][0]
    spans = seen["spans"][0] if isinstance(seen["spans"], list) else seen["spans"]
    assert (spans["answer"], spans["score"]) == (best["text"], best["score"])
    np.testing.assert_allclose(sum(entry["score"] for entry in seen["nli"]), 1)
    assert {entry["label"] for entry in seen["nli"]} == {"delivery", "money"}
    assert "there is no task" in seen["refused"]
