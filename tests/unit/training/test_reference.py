"""The reference that training writes: its counts are those of the answers that a server gives to the same rows."""

from bisect import bisect_left
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from onebert_encoder.answering.answer import answer
from onebert_store.file.decision import Abstain
from onebert_store.file.manifest import FORMAT, Manifest, parse_manifest
from onebert_store.file.reference import MAX_ANSWERED, heard_move
from onebert_training.fit.features import predict_delta
from onebert_training.fit.loop import train
from onebert_training.fit.reference import reference_of, watching
from onebert_training.fit.settings import Settings
from onebert_training.selection.few import train_judged
from tiny_delta import manifest_dict
from trainings import short_run

QUICK = Settings(epochs=2, learning_rate=5e-3)


def manifest_of(labels, kind="single_label", **decision) -> Manifest:
    names = [f"label {number}" for number in range(labels)]
    if not decision:
        return parse_manifest(manifest_dict(labels=names, task_type=kind))
    return parse_manifest(manifest_dict(format=2, labels=names, task_type=kind, decision=decision))


def test_a_trained_delta_has_the_counts_of_its_answers_to_the_validation_split(base, data):
    run = short_run(base, data, QUICK)
    delta = train(run).delta
    reference, split = delta.manifest.reference, data.splits["validation"]
    assert (delta.manifest.format, reference.split, reference.rows) == (FORMAT, "validation", len(split))
    logits = predict_delta(run.inputs.exact_base, delta, run.inputs.splits["validation"].tokens)
    answers = [answer(prediction, delta.manifest) for prediction in logits]
    labels = delta.manifest.labels
    assert reference.labels == [sum(prediction.label == label for prediction in answers) for label in labels]
    bins = Counter(bisect_left(reference.edges, prediction.score) for prediction in answers)
    assert reference.scores == [bins[number] for number in range(len(reference.edges) + 1)]
    assert reference.confidence == pytest.approx(np.mean([prediction.score for prediction in answers]))


@pytest.mark.parametrize("method", ["layernorm", "head"])
def test_folds_are_answered_by_other_models_and_are_no_reference(base, data, method):
    few = replace(data, splits={name: data.splits[name] for name in ("train", "test")})
    result = train_judged(short_run(base, few, QUICK, method=method))
    assert (result.folds > 1, result.delta.manifest.reference) == (True, None)
    assert watching(result.delta.manifest) == "the server learns its reference from the first 1,000 answers"


def test_training_says_how_small_a_change_is_heard(base, data):
    manifest = train(short_run(base, data, QUICK)).delta.manifest
    moved = heard_move(manifest.reference)
    assert watching(manifest) == (
        f"{manifest.reference.rows} validation rows: a label that moves by {100 * moved:.0f} points is heard"
    )
    deaf = manifest.reference.model_dump() | {"rows": 4, "labels": [2, 2], "edges": [], "scores": [4]}
    small = parse_manifest(manifest.model_dump() | {"reference": deaf})
    assert watching(small) == "4 validation rows: too few to hear any change"


@pytest.mark.parametrize(
    "manifest",
    [
        manifest_of(3),
        manifest_of(3, abstain=Abstain(below=0.6).model_dump(exclude_none=True)),
        manifest_of(3, thresholds={"label 1": 0.5}),
        manifest_of(3, "multi_label"),
        manifest_of(3, activation="none"),
    ],
    ids=["plain", "abstains", "thresholds", "several labels", "no probabilities"],
)
def test_counts_are_those_of_answers_one_by_one(manifest):
    random = np.random.default_rng(0)
    logits = list(random.normal(size=(200, len(manifest.labels))).astype(np.float32) * 2)
    reference = reference_of(manifest, logits, "validation", [])
    answers = [answer(prediction, manifest) for prediction in logits]
    named = Counter()
    for prediction in answers:
        named.update(
            ["abstained"]
            if prediction.abstained
            else [prediction.label]
            if prediction.labels is None
            else prediction.labels
        )
    assert reference.labels == [named[label] for label in manifest.labels]
    assert reference.abstained == named["abstained"]
    likely = manifest.decision is None or manifest.decision.activation != "none"
    assert (len(reference.scores) == 10, reference.confidence is not None) == (likely, likely)


def test_there_is_none_without_answers_that_a_server_counts():
    logits = [np.zeros(2, np.float32)]
    assert reference_of(manifest_of(1, "regression"), logits, "validation", []) is None
    assert reference_of(manifest_of(2), [], "validation", []) is None
    wide = manifest_of(MAX_ANSWERED + 1, "multi_label")
    assert reference_of(wide, [np.ones(MAX_ANSWERED + 1, np.float32)], "validation", []) is None
