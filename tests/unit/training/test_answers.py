"""What is answered to labeled rows: as a server answers, by every task type, beside what training would lose."""

import numpy as np
import pytest
import torch
from scipy.stats import binomtest
from sklearn.metrics import f1_score
from torch.nn import functional as F

from bases import manifest_for
from onebert_encoder.answering.answer import answer
from onebert_store.file.manifest import parse_manifest
from onebert_store.tables.table import Table
from onebert_training.data.examples import Split
from onebert_training.insight.answers import read_answers
from onebert_training.insight.findings import findings, interval_of
from onebert_training.tasks.objectives import OBJECTIVES


def manifest(base, task_type, labels, decision=None):
    fields = {"task_type": task_type, "labels": labels, "pooling": "mean"}
    if task_type in ("token", "span"):
        fields["pooling"] = "none"
    if decision is not None:
        fields |= {"format": 2, "decision": decision}
    return parse_manifest({**manifest_for(base.spec), **fields})


def drawn(rows, *shape, seed=0):
    return [row.astype(np.float32) for row in np.random.default_rng(seed).normal(0, 2, (rows, *shape))]


def test_a_label_is_scored_by_the_temperature_and_lost_as_in_training(base):
    made = manifest(base, "single_label", ["x", "y", "z"], {"temperature": 2.0, "abstain": {"below": 0.6}})
    logits, gold = drawn(40, 3), np.random.default_rng(1).integers(0, 3, 40)
    answers = read_answers(made, Split(("t",) * 40, gold), [], logits)
    probabilities = F.softmax(torch.from_numpy(np.stack(logits)).double() / 2, dim=1).numpy()
    assert answers.answer == ["xyz"[i] for i in probabilities.argmax(axis=1)]
    assert answers.score == pytest.approx(probabilities.max(axis=1))
    assert answers.loss == pytest.approx(-np.log(probabilities[np.arange(40), gold]), rel=1e-5)
    assert answers.abstained.tolist() == (probabilities.max(axis=1) < 0.6).tolist()
    right = (probabilities.argmax(axis=1) == gold) & ~answers.abstained
    assert answers.measure.over() == np.mean(right)
    assert answers.reliability.right.tolist() == (probabilities.argmax(axis=1) == gold).tolist()


def test_labels_are_those_over_their_thresholds(base):
    made = manifest(base, "multi_label", ["x", "y"], {"thresholds": {"x": 0.9}})
    logits, gold = drawn(60, 2), (np.random.default_rng(1).random((60, 2)) < 0.5).astype(np.float32)
    answers = read_answers(made, Split(("t",) * 60, gold), [], logits)
    probabilities = 1 / (1 + np.exp(-np.stack(logits).astype(np.float64)))
    on = probabilities > [0.9, 0.5]
    assert answers.answer == [[name for name, is_on in zip("xy", row, strict=True) if is_on] for row in on]
    assert answers.measure.over() == pytest.approx(f1_score(gold, on, average="micro"))
    assert np.isnan(answers.score).tolist() == (~on.any(axis=1)).tolist()
    both = -(gold * np.log(probabilities) + (1 - gold) * np.log1p(-probabilities)).mean(axis=1)
    assert answers.loss == pytest.approx(both, rel=1e-4)
    assert len(answers.reliability.confidence) == 120


def test_numbers_have_no_classes_and_no_confidence(base):
    made, gold = manifest(base, "regression", ["score"]), np.arange(30, dtype=np.float32)
    logits = [np.array([value + 1], dtype=np.float32) for value in gold]
    answers = read_answers(made, Split(("t",) * 30, gold), [], logits)
    assert (answers.measure.name, answers.measure.over()) == ("mae", 1.0)
    assert answers.loss == pytest.approx(np.ones(30))
    told = findings(answers, ["score"], Split(("t",) * 30, gold), Table({"text": ["t"] * 30}), [])
    assert told["points"][3] == [3.0, 4.0]
    assert (told["classes"], told["confusion"], told["calibration"]) == (None, None, None)


def test_logits_that_are_no_probabilities_have_no_calibration(base):
    made = manifest(base, "single_label", ["x", "y"], {"activation": "none"})
    split = Split(("t",) * 4, np.array([0, 1, 0, 1]))
    assert read_answers(made, split, [], drawn(4, 2)).reliability is None


@pytest.mark.parametrize("max_length", [64, 6])
def test_tags_are_those_of_the_words_that_are_read(base, tags, max_length):
    split, made = tags.splits["test"], manifest(base, "token", list(tags.labels))
    tokens = base.tokenizer.encode(split.texts, max_length, align=True)
    logits = [np.stack(drawn(len(labeling), 3, seed=i)) for i, labeling in enumerate(tokens)]
    objective = OBJECTIVES["token"](tags.labels)
    scores = objective.evaluate(split, tokens, logits)
    answers = read_answers(made, split, tokens, logits)
    assert answers.measure.over() == pytest.approx(scores["entity_f1"])
    gold, answered = np.concatenate(answers.gold), np.concatenate(answers.answer)
    assert np.mean(gold == answered) == pytest.approx(scores["token_accuracy"])
    served = [
        answer(labeling, made, text, token.alignment)
        for labeling, text, token in zip(logits, split.texts, tokens, strict=True)
    ]
    read = sum(len(labeling.words) for labeling in served)
    assert len(answers.reliability.confidence) == read
    assert answers.reliability.confidence == pytest.approx(
        [word.score for labeling in served for word in labeling.words]
    )
    for i, target in enumerate(objective.targets(split, tokens)):
        seen = target != -100
        loss = F.cross_entropy(torch.from_numpy(logits[i])[seen], target[seen]).item() if seen.any() else np.nan
        assert answers.loss[i] == pytest.approx(loss, rel=1e-5, nan_ok=True)


@pytest.mark.parametrize("max_length", [64, 9])
def test_spans_are_those_that_a_server_finds_and_cut_answers_have_no_loss(base, questions, max_length):
    split, made = questions.splits["test"], manifest(base, "span", ["start", "end"])
    tokens = base.tokenizer.encode(split.texts, max_length, align=True)
    logits = [np.stack(drawn(len(token), 2, seed=i)) for i, token in enumerate(tokens)]
    objective = OBJECTIVES["span"](["start", "end"])
    scores = objective.evaluate(split, tokens, logits)
    answers = read_answers(made, split, tokens, logits)
    assert answers.measure.over() == pytest.approx(scores["f1"])
    assert answers.reliability.right.sum() / len(split) == pytest.approx(scores["exact_match"])
    lost = [not objective.has_target(target) for target in objective.targets(split, tokens)]
    assert np.isnan(answers.loss).tolist() == lost
    assert any(lost) == (max_length == 9)


def test_the_accuracy_of_sets_of_labels_has_the_interval_of_a_share(base):
    made, gold = manifest(base, "multi_label", ["x", "y"]), np.tile([[1, 0], [0, 1]], (15, 1)).astype(np.float32)
    logits = list((2 * gold - 1).astype(np.float32))
    split, objective = Split(("t",) * 30, gold), OBJECTIVES["multi_label"](["x", "y"])
    interval = interval_of("accuracy", read_answers(made, split, [], logits), objective, split, [], logits)
    expected = binomtest(30, 30).proportion_ci(method="wilson")
    assert interval == pytest.approx((expected.low, expected.high))


def test_many_labels_have_pairs_and_no_matrix(base):
    labels = [f"label {i}" for i in range(30)]
    made, gold = manifest(base, "single_label", labels), np.arange(30).repeat(3)
    logits = [np.eye(30, dtype=np.float32)[(i + (i < 5)) % 30] for i in gold]
    split = Split(("t",) * 90, gold)
    facts = findings(read_answers(made, split, [], logits), labels, split, Table({"text": ["t"] * 90}), [])
    assert facts["confusion"]["matrix"] is None
    assert facts["confusion"]["pairs"] == [
        {"gold": f"label {i}", "answer": f"label {i + 1}", "count": 3} for i in range(5)
    ]
    assert len(facts["classes"]["shown"]) == 30
