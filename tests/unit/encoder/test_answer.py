"""Answers from logits: scores against scipy, entities against seqeval, spans against a search through all of them."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.special import softmax
from seqeval.metrics.sequence_labeling import get_entities

from bases import loaded as base
from bases import manifest_for
from onebert_encoder.answering.answer import TASK_TYPES, answer
from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.results import (
    FEW,
    Extraction,
    FoundSpan,
    Labeled,
    Labeling,
    Prediction,
    answer_of,
    fields_of,
)
from onebert_encoder.answering.stretches import is_bio
from onebert_encoder.text.tokens import Alignment, Text
from onebert_store.file.manifest import Manifest, TaskType, parse_manifest

LOGITS = np.array([0.3, -2.0, 4.5, 1.0], np.float32)
BIO = ["O", "B-PER", "I-PER", "B-LOC", "I-LOC", "B-a-b", "I-a-b"]


def manifest(task_type: TaskType, labels: int) -> Manifest:
    return parse_manifest(manifest_for(base().spec, labels=labels, task_type=task_type))


def per_token(task_type: TaskType, labels: list[str]) -> Manifest:
    return parse_manifest(manifest_for(base().spec, "none") | {"task_type": task_type, "labels": labels})


def labeled(logits: np.ndarray, labels: list[str], text: str, alignment: Alignment) -> Any:
    return answer(logits.astype(np.float32), per_token("token", labels), text, alignment)


def extracted(logits: np.ndarray, text: tuple[str, str], alignment: Alignment, top_k: int | None = None) -> Any:
    return answer(logits.astype(np.float32), per_token("span", ["start", "end"]), text, alignment, Asked(top_k))


def aligned(text: Text, family: str = "bert", max_length: int = 64) -> Alignment:
    (tokens,) = base(family).tokenizer.encode([text], max_length, align=True)
    return tokens.alignment


def test_single_label_scores_are_the_softmax_highest_first() -> None:
    got = answer(LOGITS, manifest("single_label", 4))
    wanted = softmax(LOGITS.astype(np.float64))
    assert got.names == [f"label {i}" for i in range(4)]
    assert got.scores == pytest.approx(wanted.tolist())
    assert (got.label, list(got.top())) == ("label 2", ["label 2", "label 3", "label 0", "label 1"])
    assert got.top() == pytest.approx({f"label {i}": value for i, value in enumerate(wanted)})
    assert got.score == got.top()["label 2"]
    assert got.labels is None
    assert got.abstained is None


def test_a_regression_answers_the_plain_value() -> None:
    got = answer(np.array([3.25, 9.5], np.float32), manifest("regression", 2))
    wanted = {"label": "label 0", "score": 3.25, "scores": {"label 0": 3.25, "label 1": 9.5}}
    assert fields_of(got, 1) == wanted | {"labels": None, "abstained": None, "energy": None}


@pytest.mark.parametrize("labels", [1, 2, FEW, FEW + 1, 300])
def test_equal_scores_keep_the_order_of_labels(labels):
    scores = np.random.default_rng(labels).integers(0, 5, labels) / 4
    names = [f"label {i}" for i in range(labels)]
    got = answer(scores.astype(np.float32), manifest("regression", labels))._replace(ranks=True)
    wanted = sorted(zip(names, scores.tolist(), strict=True), key=lambda pair: -pair[1])
    assert [*got.top(7).items()] == wanted[:7]
    if labels > 1:
        got = answer(scores.astype(np.float32), manifest("single_label", labels))
        assert [*got.top()] == [name for name, _ in wanted]


def test_extreme_logits_do_not_overflow() -> None:
    extreme = np.array([-1e4, 1e4], np.float32)
    assert answer(extreme, manifest("single_label", 2)).top() == {"label 1": 1.0, "label 0": 0.0}
    assert answer(extreme, manifest("multi_label", 2)).top() == {"label 1": 1.0, "label 0": 0.0}


def test_each_word_has_the_label_of_its_first_token() -> None:
    text = "broken, orders  zq"
    alignment = aligned(text)
    rng = np.random.default_rng(0)
    logits = rng.normal(size=(len(alignment.words), 3))
    got = labeled(logits, ["A", "B", "C"], text, alignment)
    assert [text[word.start : word.end] for word in got.words] == ["broken", ",", "orders", "zq"]
    firsts = [alignment.words.index(number) for number in range(4)]
    assert len(alignment.words) > 2 + 4  # some word has several tokens
    scores = softmax(logits[firsts], axis=-1)
    assert [word.label for word in got.words] == ["ABC"[i] for i in scores.argmax(-1)]
    assert [word.score for word in got.words] == pytest.approx(scores.max(-1), abs=1e-6)
    assert got.entities is None


def test_byte_level_words_are_whole_characters() -> None:
    """The fixture's tokenizer has a token for each byte: four for an emoji; a space is a token but no word."""
    text = " é😀s  ab"
    alignment = aligned(text, "roberta")
    logits = np.zeros((len(alignment.words), 2))
    # Only the token of "a" is labeled B: it decides for the word "ab", not the token of the space before it.
    logits[alignment.offsets.index((6, 7)), 1] = 5.0
    got = labeled(logits, ["A", "B"], text, alignment)
    words = [(text[word.start : word.end], word.label) for word in got.words]
    assert "".join(part for part, _ in words) == "é😀sab"
    assert words[-1] == ("ab", "B")
    assert {label for _, label in words[:-1]} == {"A"}


@pytest.mark.parametrize("text", ["", "\x00", "   "], ids=["empty", "control", "blank"])
def test_a_text_without_words_has_none(text: str) -> None:
    alignment = aligned(text)
    assert labeled(np.zeros((len(alignment.words), 7)), BIO, text, alignment) == Labeling([], [])
    alignment = aligned(("good", text))
    assert extracted(np.zeros((len(alignment.words), 2)), ("good", text), alignment) == Extraction([])


@given(st.lists(st.sampled_from(BIO), min_size=1, max_size=30), st.integers(0, 100))
def test_entities_are_seqevals(tags: list[str], seed: int) -> None:
    text = " ".join("x" * (1 + i % 3) for i in range(len(tags)))
    spans, start = [], 0
    for word in text.split():
        spans.append((start, start + len(word)))
        start += len(word) + 1
    logits = np.random.default_rng(seed).normal(size=(len(tags), len(BIO)))
    logits[range(len(tags)), [BIO.index(tag) for tag in tags]] += 9
    got = labeled(logits, BIO, text, Alignment([*spans], [*range(len(tags))], [0] * len(tags)))
    assert [word.label for word in got.words] == tags
    wanted = [(kind, spans[first][0], spans[last][1]) for kind, first, last in get_entities(tags)]
    assert [(entity.label, entity.start, entity.end) for entity in got.entities] == wanted
    scores = softmax(logits, axis=-1).max(-1)
    means = [scores[first : last + 1].mean() for _, first, last in get_entities(tags)]
    assert [entity.score for entity in got.entities] == pytest.approx(means, abs=1e-6)


def test_which_labels_mark_entities() -> None:
    assert is_bio(["O", "B-x", "I-x"])
    assert is_bio(["B-x", "O"])
    assert is_bio(["I-x", "I-y", "O"]), "IOB1, where no two entities touch"
    for labels in (["O", "NOUN"], ["B-x", "I-x"], ["O"], ["O", "B-x", "E-x"], ["O", "other"], ["NOUN", "VERB"]):
        assert not is_bio(labels)


@given(st.integers(1, 60), st.integers(0, 1000), st.sampled_from([None, 1, 3, 4096]))
def test_spans_are_the_best_of_all(words: int, seed: int, top_k: int | None) -> None:
    rng = np.random.default_rng(seed)
    question, context = "what is it", " ".join(rng.choice(["good", "late", "zq", "ab", "."], words))
    alignment = aligned((question, context))
    logits = rng.normal(0, 3, (len(alignment.words), 2)).astype(np.float32)
    got = extracted(logits, (question, context), alignment, top_k).answers
    inside = [i for i, half in enumerate(alignment.sequences) if half == 1]
    starts, ends = softmax(logits[inside].astype(np.float64), axis=0).T
    every = sorted(
        (
            (float(starts[i] * ends[j]), alignment.offsets[inside[i]][0], alignment.offsets[inside[j]][1])
            for i in range(len(inside))
            for j in range(i, min(i + 30, len(inside)))
        ),
        reverse=True,
    )[: min(top_k or 1, 20)]
    assert [word.score for word in got] == pytest.approx([score for score, _, _ in every], rel=1e-9)
    assert [(word.start, word.end) for word in got] == [(start, end) for _, start, end in every]
    assert all(word.text == context[word.start : word.end] for word in got)


def test_a_span_is_given_once_and_never_empty() -> None:
    pair = ("a", "é😀  b")
    alignment = aligned(pair, "roberta")
    logits = np.random.default_rng(1).normal(size=(len(alignment.words), 2))
    got = extracted(logits, pair, alignment, top_k=4096).answers
    places = [(word.start, word.end) for word in got]
    assert len(set(places)) == len(places)
    assert set(places) == {(0, 1), (0, 2), (0, 5), (1, 2), (1, 5), (4, 5)}  # no (2, 5), which begins with spaces


def test_what_each_task_type_takes() -> None:
    takes = {name: (kind.takes(pair=False), kind.takes(pair=True)) for name, kind in TASK_TYPES.items()}
    both = dict.fromkeys(("single_label", "multi_label", "regression"), (True, True))
    assert takes == both | {"token": (True, False), "span": (False, True)}


def test_the_short_answer_is_read_by_task_type():
    def prediction(labels=None, abstained=None):
        return Prediction(["good", "bad"], np.array([0.7, 0.3]), 0, labels, abstained)

    assert answer_of("single_label", prediction(["bad", "good"], False)) == "good"
    assert answer_of("single_label", prediction(abstained=True)) is None
    assert answer_of("multi_label", prediction(["odd", "bad"])) == ("bad", "odd")
    assert answer_of("multi_label", prediction([])) == ()
    assert answer_of("regression", prediction()) == 0.7


def test_slices_are_entities_or_words_and_the_first_answer():
    word, entity = Labeled(4, 9, "B-x", 0.9), Labeled(0, 3, "x", 0.8)
    assert answer_of("token", Labeling([word], [word, entity])) == ((0, 3, "x"), (4, 9, "B-x"))
    assert answer_of("token", Labeling([word], None)) == ((4, 9, "B-x"),)
    spans = [FoundSpan(4, 9, "under", 0.9), FoundSpan(0, 3, "way", 0.1)]
    assert answer_of("span", Extraction(spans)) == ((4, 9),)
    assert answer_of("span", Extraction([])) == ()
    assert answer_of("span", Extraction(spans, abstained=True)) == ()
