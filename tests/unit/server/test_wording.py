"""Answers in the words of clients: bounded before they are computed or made, at a price that grows with the labels."""

import json

import msgspec
import pytest

from onebert_semantic_router.bodies import Bundle
from onebert_semantic_router.bundle import bundle
from onebert_server.answering import sizes
from onebert_server.facades.clients import fms, hugging_face, kserve, litellm, openai, vllm
from onebert_server.limits import MAX_ITEMS
from onebert_store.errors import InvalidInput, OneBertError, TooLarge

BLANK = "\u200b"
LABELS = [f"label {n}" for n in range(500)]


def made(kind, **fields):
    """A body of a kind, as its JSON would be read."""
    return msgspec.convert(fields, kind)


def ask(parts, answer, body):
    return json.loads(parts.call(answer, body).content)


@pytest.fixture
def parts(parts):
    decision = {"positives": LABELS[1:], "thresholds": dict.fromkeys(LABELS, 0.0)}
    parts.add("wide", labels=LABELS, format=2, decision=decision)
    return parts


def test_detections_repeat_their_text_within_bounds(parts, monkeypatch):
    text = "\u0001" * 20_000 + "late"  # six bytes of JSON each
    monkeypatch.setattr(fms, "_in_text", lambda *_: pytest.fail("a detection was made"))
    body = made(fms.Contents, contents=[text], detector_params={"threshold": -1.0})
    with pytest.raises(TooLarge, match="the answers would be over"):
        ask(parts, fms.contents, body)
    monkeypatch.undo()
    [of_text] = ask(
        parts, fms.contents, made(fms.Contents, contents=["it is late"], detector_params={"threshold": -1.0})
    )
    assert sorted(detection["detection_type"] for detection in of_text) == sorted(LABELS[1:])


CASES = [
    (openai.moderate, made(openai.Moderate, input=["late"] * MAX_ITEMS)),
    (hugging_face.answer, made(hugging_face.Body, inputs=["late"] * MAX_ITEMS)),
    (kserve.predict, made(kserve.Predict, instances=["late"] * MAX_ITEMS)),
    (vllm.classify, made(vllm.Classify, input=["late"] * MAX_ITEMS)),
    (bundle, made(Bundle, tasks=[{"id": "a", "classify": {"model": "wide", "input": ["late"] * MAX_ITEMS}}])),
]


@pytest.mark.parametrize(("answer", "body"), CASES, ids=["openai", "hugging face", "kserve", "vllm", "bundle"])
def test_a_facades_answer_is_bounded_before_it_is_computed(parts, monkeypatch, answer, body):
    """The bound is a little below what the words take."""
    size = len(json.dumps(ask(parts, answer, body), separators=(",", ":"), ensure_ascii=False))
    computed = len(parts.batches.sequences)
    monkeypatch.setattr(sizes, "MAX_ANSWER_BYTES", int(0.75 * size))
    if answer is bundle:
        assert ask(parts, answer, body)["results"][0]["status"] == 413
    else:
        with pytest.raises(OneBertError, match="the answers would be over") as refused:
            ask(parts, answer, body)
        assert refused.value.code == TooLarge.code
    assert len(parts.batches.sequences) == computed


@pytest.mark.parametrize("sizes_of", [(1, 8, 8, 1), (8, 8, 1, 1), (1, 1, 8, 8)])
def test_a_bundle_is_bounded_as_a_whole(parts, monkeypatch, sizes_of):
    def body(*counts):
        return made(
            Bundle,
            tasks=[
                {"id": str(at), "classify": {"model": "wide", "input": ["late"] * n}} for at, n in enumerate(counts)
            ],
        )

    size = len(json.dumps(ask(parts, bundle, body(8)), separators=(",", ":"), ensure_ascii=False))
    monkeypatch.setattr(sizes, "MAX_ANSWER_BYTES", int(1.5 * size))
    assert ask(parts, bundle, body(8))["results"][0]["status"] == 200
    with pytest.raises(TooLarge, match="the answers would be over"):
        ask(parts, bundle, body(*sizes_of))


def test_a_blank_message_is_none_of_the_last_two_of_a_chat(parts):
    turns = [{"role": "user", "content": "it is late"}, {"role": "assistant", "content": "now"}]
    blank = {"role": "user", "content": f" {BLANK}"}

    def detections_in(*messages):
        return ask(parts, fms.chat, made(fms.Chat, messages=list(messages), detector_params={"threshold": 0.0}))

    assert detections_in(turns[0], blank, turns[1], blank) == detections_in(*turns) != detections_in(turns[1], blank)
    with pytest.raises(InvalidInput, match="must have a text"):
        detections_in(blank)


def test_a_block_gives_a_bounded_number_of_reasons(parts):
    refused = ask(parts, litellm.check, made(litellm.Check, texts=["late", "it is late"] * 20))
    assert refused["action"] == "BLOCKED"
    reasons = refused["blocked_reason"].split("; ")
    assert 1 <= len(reasons) <= litellm.MAX_REASONS
    assert all(reason.startswith("wide@1: label ") for reason in reasons)
