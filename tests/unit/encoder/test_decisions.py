"""Answers by a manifest's decision and by what a request asks: beside scipy, number by number."""

import itertools
from typing import Any

import numpy as np
import pytest
from scipy.special import expit, logsumexp, softmax

from onebert_encoder.answering.answer import answer
from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.answering.positives import flagged
from onebert_encoder.answering.results import fields_of
from onebert_encoder.answering.scores import score
from onebert_encoder.text.tokens import Alignment
from onebert_store.errors import InvalidInput
from onebert_store.file.decision import ACTIVATIONS
from onebert_store.file.manifest import Manifest, parse_manifest
from tiny_delta import manifest_dict

LABELS = ["a", "b", "c"]
LOGITS = np.array([0.7, -1.3, 0.4], np.float32)
FUNCTIONS = {"softmax": softmax, "sigmoid": expit, "none": lambda values: values}


def task(task_type: str = "single_label", labels: list[str] | None = None, **decision: Any) -> Manifest:
    names = {"task_type": task_type, "labels": labels or LABELS}
    pooled = {"pooling": "none"} if task_type in ("token", "span") else {}
    return parse_manifest(manifest_dict(**names, **pooled, **({"format": 2, "decision": decision} if decision else {})))


def predicted(manifest: Manifest, asked: Asked = PLAIN, logits: np.ndarray = LOGITS) -> Any:
    return answer(logits, manifest, asked=asked)


@pytest.mark.parametrize("task_type", ["single_label", "multi_label"])
@pytest.mark.parametrize(("activation", "asked"), [*itertools.product(("softmax", "sigmoid", "none", None), repeat=2)])
@pytest.mark.parametrize("temperature", [None, 2.5])
def test_scores_are_of_the_activation_that_is_asked_for_else_the_tasks(
    task_type, activation, asked, temperature
) -> None:
    if activation == "none":
        temperature = None  # which nothing could be divided for
    decision = {key: value for key, value in (("activation", activation), ("temperature", temperature)) if value}
    got = predicted(task(task_type, **decision), Asked(activation=asked))
    shown = asked or activation or ACTIVATIONS[task_type][0]
    divided = LOGITS.astype(np.float64) / (1.0 if shown == "none" else temperature or 1.0)
    np.testing.assert_allclose(got.scores, FUNCTIONS[shown](divided), rtol=1e-12)
    assert (got.label, list(got.top(2))) == ("a", ["a", "c"])


def test_thresholds_select_beside_the_scores_and_not_instead() -> None:
    got = predicted(task("single_label", thresholds={"a": 0.9, "c": 0.2}))
    assert (got.label, got.labels) == ("a", ["c"])  # b has no threshold, and is never selected
    assert predicted(task("single_label")).labels is None
    # A multi-label task has one half where nothing is said; without an activation that is the logit 0.
    assert predicted(task("multi_label", thresholds={"a": 0.9})).labels == ["c"]
    assert predicted(task("multi_label", activation="none")).labels == ["a", "c"]
    assert predicted(task("multi_label"), logits=np.zeros(3, np.float32)).labels == []
    assert predicted(task("regression", thresholds={"c": 0.1})).labels == ["c"]
    assert fields_of(got, None)["labels"] == ["c"]


def test_a_threshold_of_the_request_is_in_the_units_of_its_scores() -> None:
    strict = task("multi_label", thresholds={"a": 0.99, "b": 0.99, "c": 0.99})
    assert predicted(strict).labels == []
    assert predicted(strict, Asked(threshold=0.6)).labels == ["a"]
    assert predicted(strict, Asked(threshold=-2.0, activation="none")).labels == ["a", "c", "b"]
    # Without one the task's own thresholds hold, whatever scores are shown.
    lenient = task("multi_label", thresholds={"a": 0.1, "b": 0.1, "c": 0.1})
    assert predicted(lenient, Asked(activation="none")).labels == ["a", "c", "b"]
    assert predicted(lenient, Asked(activation="softmax")).labels == ["a", "c", "b"]


def test_a_task_abstains_below_a_probability_and_still_scores() -> None:
    top = softmax(LOGITS.astype(np.float64)).max()
    for below, abstained in ((top + 1e-6, True), (top - 1e-6, False)):
        got = predicted(task(abstain={"below": float(below)}))
        assert got.abstained is abstained
        assert got.label == "a"
        # The rule is about the task's own probability, whatever scores are shown.
        assert predicted(task(abstain={"below": float(below)}), Asked(activation="none")).abstained is abstained
    assert predicted(task()).abstained is None
    assert "abstained" in fields_of(got, None)


@pytest.mark.parametrize("temperature", [None, 0.5, 3.0])
def test_a_task_abstains_above_an_energy(temperature) -> None:
    t = temperature or 1.0
    energy = float(-t * logsumexp(LOGITS.astype(np.float64) / t))
    more = {} if temperature is None else {"temperature": temperature}
    assert predicted(task(abstain={"energy": energy - 1e-6}, **more)).abstained is True
    assert predicted(task(abstain={"energy": energy + 1e-6}, **more)).abstained is False


@pytest.mark.parametrize("task_type", ["single_label", "multi_label"])
@pytest.mark.parametrize("decision", [{}, {"temperature": 0.5}, {"activation": "none"}])
def test_an_answer_says_its_energy_where_it_is_asked_for(task_type, decision) -> None:
    manifest = task(task_type, **decision)
    plain, asked = predicted(manifest), predicted(manifest, Asked(energy=True))
    t = decision.get("temperature", 1.0)
    assert asked.energy == pytest.approx(-t * logsumexp(LOGITS.astype(np.float64) / t), rel=1e-12)
    assert plain.energy is None
    np.testing.assert_array_equal(asked.scores, plain.scores)
    assert asked.labels == plain.labels
    # Whatever else is asked for, it is the number that the rule to abstain is about.
    assert predicted(manifest, Asked(activation="none", threshold=0.0, energy=True)).energy == asked.energy


def test_many_texts_at_once_are_scored_as_each_alone() -> None:
    logits = np.random.default_rng(0).normal(0, 3, (50, 3))
    manifest = task("multi_label", temperature=1.7, thresholds={"b": 0.3}, abstain={"energy": -1.5})
    scored = score(logits, manifest)
    for number, logit in enumerate(logits):
        alone = predicted(manifest, logits=logit)
        np.testing.assert_array_equal(scored.scores[number], alone.scores)
        assert {name for name, over in zip(LABELS, scored.selected[number], strict=True) if over} == set(
            alone.labels or ()
        )
        assert scored.abstained[number] == alone.abstained
    assert 0 < scored.abstained.sum() < 50


def test_words_and_spans_have_a_temperature_too() -> None:
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (4, 3)).astype(np.float32)
    alignment = Alignment([(0, 1), (2, 3), (4, 5), (6, 7)], [0, 1, 2, 3], [0] * 4)
    for asked, expected in (
        (Asked(), softmax(logits.astype(np.float64) / 4.0, axis=-1)),
        (Asked(activation="none"), logits.astype(np.float64)),
    ):
        got = answer(logits, task("token", temperature=4.0), "a b c d", alignment, asked)
        assert [word.score for word in got.words] == pytest.approx(expected.max(-1).tolist(), rel=1e-12)
    alignment = Alignment(alignment.offsets, alignment.words, [1] * 4)
    for below in (0.05, 1.0):
        span = task("span", ["start", "end"], temperature=4.0, abstain={"below": below})
        got = answer(logits[:, :2], span, ("q", "a b c d"), alignment)
        starts, ends = softmax(logits[:, :2].astype(np.float64) / 4.0, axis=0).T
        best = max(starts[i] * ends[j] for i in range(4) for j in range(i, 4))
        assert got.answers[0].score == pytest.approx(best)
        assert got.abstained is bool(best < below)


def test_positive_labels_are_flagged_over_their_thresholds() -> None:
    exclusive = task(positives=["a", "b"])
    scores = softmax(LOGITS.astype(np.float64))
    several = task("multi_label", positives=["b", "c"])
    assert flagged(predicted(several), several) == ["c"]
    assert scores[0] > 0.5
    assert flagged(predicted(exclusive), exclusive) == ["a"]
    with_thresholds = task(positives=["b"], thresholds={"b": 0.01})
    assert flagged(predicted(with_thresholds), with_thresholds) == ["b"]
    with pytest.raises(
        InvalidInput, match="which of its labels are positive: `onebert calibrate FILE --positive LABEL`"
    ):
        flagged(predicted(task()), task())
