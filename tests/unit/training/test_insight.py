"""What labeled rows say of a delta, against scikit-learn, SciPy, seqeval and the definitions written out."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest
from seqeval.metrics import classification_report as entity_report
from sklearn.metrics import classification_report, confusion_matrix

from onebert_store.errors import InvalidSettings
from onebert_store.tables.slices import EMPTY, group
from onebert_store.tables.table import Table
from onebert_training.insight import classes
from onebert_training.insight.answers import Measure
from onebert_training.insight.classes import expected_calibration_error
from onebert_training.insight.intervals import bootstrap, wilson
from onebert_training.insight.slices import slice_by

NAMES = ("a", "b", "c", "d")


def drawn(seed=0, rows=300):
    """Right and answered classes that agree for three rows in four; class d is never answered."""
    draw = np.random.default_rng(seed)
    gold = draw.integers(0, 4, rows)
    answered = np.where(draw.random(rows) < 0.75, gold, draw.integers(0, 4, rows))
    return gold, np.where(answered == 3, 0, answered)


def assert_as_reported(facts, report):
    assert {fact["label"] for fact in facts} == {name for name in report if " avg" not in name} - {"accuracy"}
    for fact in facts:
        expected = report[fact["label"]]
        assert fact["support"] == expected["support"]
        for ours, theirs in (("precision", "precision"), ("recall", "recall"), ("f1", "f1-score")):
            assert fact[ours]["value"] == pytest.approx(expected[theirs], abs=1e-12)
            assert 0 <= fact[ours]["low"] <= fact[ours]["value"] <= fact[ours]["high"] <= 1


def test_classes_are_those_of_scikit_learn():
    gold, answered = drawn()
    report = classification_report(gold, answered, target_names=NAMES, output_dict=True, zero_division=0)
    assert_as_reported(classes.count_indices(gold, answered, NAMES).facts(), report)


def test_labels_of_which_a_text_has_several_are_those_of_scikit_learn():
    draw = np.random.default_rng(1)
    gold, answered = draw.random((200, 4)) < 0.3, draw.random((200, 4)) < 0.4
    report = classification_report(gold, answered, target_names=NAMES, output_dict=True, zero_division=0)
    assert_as_reported(classes.count_indicators(gold, answered, NAMES).facts(), report)


def test_entities_are_those_of_seqeval():
    draw = np.random.default_rng(2)
    tags = ["O", "B-place", "I-place", "B-name", "I-name"]
    gold = [[tags[i] for i in draw.integers(0, 5, 12)] for _ in range(80)]
    answered = [[tag if draw.random() < 0.8 else tags[draw.integers(0, 5)] for tag in row] for row in gold]
    counts, by_text = classes.count_entities(gold, answered)
    assert_as_reported(counts.facts(), entity_report(gold, answered, output_dict=True, zero_division=0))
    whole = entity_report(gold, answered, output_dict=True, zero_division=0)["micro avg"]
    common, predicted, right = by_text.sum(axis=0)
    assert 2 * common / (predicted + right) == pytest.approx(whole["f1-score"])


def test_confusion_is_that_of_scikit_learn():
    gold, answered = drawn()
    matrix = confusion_matrix(gold, answered, labels=range(4))
    assert classes.confusion_matrix(gold, answered, 4).tolist() == matrix.tolist()
    pairs = classes.top_pairs(gold, answered)
    expected = sorted((matrix[i, j] for i in range(4) for j in range(4) if i != j and matrix[i, j]), reverse=True)
    assert [count for _, _, count in pairs] == expected
    assert all(matrix[right, answered] == count and right != answered for right, answered, count in pairs)
    assert classes.top_pairs(gold, answered, limit=2) == pairs[:2]
    assert classes.top_pairs(gold, gold) == []


@given(st.integers(0, 60), st.integers(0, 60))
def test_shares_lie_in_the_interval_of_scipy(hits, more):
    low, high = wilson(hits, hits + more)
    if hits + more:
        expected = binomtest(hits, hits + more).proportion_ci(method="wilson")
        assert (low, high) == pytest.approx((expected.low, expected.high), abs=1e-9)
    else:
        assert (low, high) == (0, 1)


def test_the_bootstrap_of_a_mean_is_as_wide_as_its_standard_error():
    values = np.random.default_rng(4).normal(10, 2, 400)
    low, high = bootstrap(400, lambda rows: float(values[rows].mean()), times=2000)
    error = values.std() / np.sqrt(400)
    # The ends of 2,000 samples vary by about 3 % of the width.
    assert (low, high) == pytest.approx((values.mean() - 1.96 * error, values.mean() + 1.96 * error), abs=0.3 * error)


def test_ece_is_the_definition_written_out():
    draw = np.random.default_rng(5)
    confidence = np.concatenate([draw.random(500), [0.0, 1.0, 1 / 15, 2 / 15]])
    right = draw.random(504) < confidence**2
    total = 0.0
    for m in range(15):
        inside = [i for i, p in enumerate(confidence) if m / 15 < p <= (m + 1) / 15 or (m == 0 and p == 0)]
        if inside:
            gap = abs(np.mean(right[inside]) - np.mean(confidence[inside]))
            total += len(inside) / 504 * gap
    assert expected_calibration_error(confidence, right) == pytest.approx(total, abs=1e-12)


def test_slices_are_the_metric_on_the_rows_of_each_value():
    draw = np.random.default_rng(8)
    cells = draw.choice(["web", "mail", "phone"], 120, p=[0.6, 0.3, 0.1]).tolist()
    right = (draw.random(120) < 0.8).astype(float)
    values = slice_by(Table({"Channel": cells}), "channel", Measure("accuracy", right, np.ones(120)))["values"]
    assert [part["value"] for part in values] == ["web", "mail", "phone"]
    for part in values:
        of_value = right[[cell == part["value"] for cell in cells]]
        assert (part["rows"], part["score"]) == (len(of_value), pytest.approx(of_value.mean()))
        expected = binomtest(int(of_value.sum()), len(of_value)).proportion_ci(method="wilson")
        assert (part["low"], part["high"]) == pytest.approx((expected.low, expected.high))


@pytest.mark.parametrize("kind", [int, float, str])
def test_numbers_are_binned_and_no_value_is_in_two_bins(kind):
    numbers = [kind(value) for value in np.random.default_rng(9).integers(0, 40, 300).tolist()]
    groups = group([*numbers, None, ""])
    assert len(groups) == 6
    assert groups[EMPTY].tolist() == [300, 301]
    bins = [sorted(float(numbers[row]) for row in rows) for value, rows in groups.items() if value != EMPTY]
    assert all(interval[-1] < other[0] for interval, other in pairwise(bins))
    assert min(map(len, bins)) > 30
    assert sorted(row for rows in groups.values() for row in rows.tolist()) == list(range(302))


def test_a_column_that_is_not_there_is_one_line():
    with pytest.raises(InvalidSettings, match=r"^--slice: no column Chanel \(the columns are channel\)$"):
        slice_by(Table({"channel": ["web"]}), "Chanel", Measure("accuracy", np.ones(1), np.ones(1)))
