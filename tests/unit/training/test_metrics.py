"""Metrics against values worked out by hand, and against scikit-learn."""

import math

import numpy as np
import pytest
import sklearn.metrics
from hypothesis import given
from hypothesis import strategies as st

from onebert_store.errors import InvalidData
from onebert_training.tasks import metrics
from onebert_training.tasks.metrics import (
    ANSWERS,
    REGRESSION,
    choose_metric,
    score_tags,
    tag_metrics,
)
from scoring import evaluate, objective


def one_hot(predicted, num_labels):
    return np.eye(num_labels)[predicted]


@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")
@given(st.integers(2, 6), st.data())
def test_of_any_rows_they_are_those_of_scikit_learn(labels, draws):
    pairs = draws.draw(st.lists(st.tuples(*[st.integers(0, labels - 1)] * 2), min_size=1, max_size=30))
    gold, answered = np.array(pairs).T
    options = {"average": "macro", "zero_division": 0}
    expected = {
        "accuracy": sklearn.metrics.accuracy_score(gold, answered),
        "macro_f1": sklearn.metrics.f1_score(gold, answered, **options),
        "matthews": sklearn.metrics.matthews_corrcoef(gold, answered),
    }
    if labels == 2:
        expected["f1"] = sklearn.metrics.f1_score(gold, answered, zero_division=0)
    assert evaluate("single_label", gold, one_hot(answered, labels)) == pytest.approx(expected)
    several, on = np.eye(labels)[gold], np.eye(labels)[answered] + np.eye(labels)[answered[::-1]] > 0
    known = np.flatnonzero((several + on).any(axis=0))
    assert evaluate("multi_label", several, on - 0.5) == pytest.approx(
        {
            "accuracy": sklearn.metrics.accuracy_score(several, on),
            "micro_f1": sklearn.metrics.f1_score(several, on, average="micro", zero_division=0),
            "macro_f1": sklearn.metrics.f1_score(several, on, labels=known, **options),
        }
    )
    cut = draws.draw(st.integers(0, len(gold)))
    tags = score_tags([gold[:cut], gold[cut:]], [answered[:cut], answered[cut:]], [f"tag {n}" for n in range(labels)])
    assert tags == pytest.approx({"token_accuracy": expected["accuracy"], "macro_f1": expected["macro_f1"]})


@pytest.mark.filterwarnings("ignore:A single label was found:UserWarning")
@given(st.integers(2, 5), st.data())
def test_an_abstention_is_an_answer_that_no_row_asks_for(labels, draws):
    row = st.tuples(st.integers(0, labels - 1), st.integers(0, labels))
    gold, answered = np.array(draws.draw(st.lists(row, min_size=1, max_size=30))).T
    logits = np.eye(labels + 1)[answered][:, :labels]
    logits[answered == labels] = np.nan
    present = [label for label in range(labels) if label in {*gold, *answered}]
    scores = metrics.score_single_label(gold, logits)
    assert scores["accuracy"] == pytest.approx(sklearn.metrics.accuracy_score(gold, answered))
    f1 = sklearn.metrics.f1_score(gold, answered, labels=present, average="macro", zero_division=0)
    assert scores["macro_f1"] == pytest.approx(f1)
    assert scores["matthews"] == pytest.approx(sklearn.metrics.matthews_corrcoef(gold, answered))
    # A row with none of the labels is not right either if the task abstains on it.
    several = np.eye(labels)[gold] * (gold > 0)[:, None]
    exact = (np.nan_to_num(logits) == several).all(axis=1) & (answered < labels)
    assert metrics.score_multi_label(several, logits - 0.5)["accuracy"] == pytest.approx(exact.mean())


@pytest.mark.parametrize(
    ("gold", "on", "f1"),
    [
        ([1, 0, 0, 0], [0, 0, 0, 0], 0),
        ([1, 1, 0, 0], [1, 0, 1, 0], 0.5),
        ([1, 1, 1, 0], [1, 1, 0, 0], 2 * 2 / (2 * 2 + 1)),
        ([0, 0, 0, 0], [0, 0, 0, 0], 0),
    ],
)
def test_of_a_single_label_only_being_on_counts(gold, on, f1):
    gold, logits = np.array(gold, dtype=np.float32)[:, None], np.array(on)[:, None] - 0.5
    scores = evaluate("multi_label", gold, logits)
    assert scores == pytest.approx({"micro_f1": f1, "macro_f1": f1, "accuracy": np.mean(gold == (logits > 0))})


def test_regression():
    scores = evaluate("regression", [1.0, 2.0, 3.0], np.array([[1.0], [2.0], [9.0]]))
    assert scores["pearson"] == pytest.approx(8 / math.sqrt(2 * 38))
    assert scores["spearman"] == pytest.approx(1.0)
    assert scores["mae"] == pytest.approx(2.0)
    assert scores["r2"] == pytest.approx(1 - 36 / 2)


BIO = ("O", "B-PER", "I-PER", "B-LOC", "I-LOC")


@pytest.mark.parametrize(
    ("names", "wanted", "name"),
    [
        (objective("single_label", 6).metrics, None, "accuracy"),
        (objective("single_label", 2).metrics, "f1/accuracy", "f1"),
        (objective("single_label", 2).metrics, "matthews_correlation", "matthews"),
        (objective("multi_label", 6).metrics, None, "micro_f1"),
        (REGRESSION, "pearson/spearman", "pearson"),
        (REGRESSION, "r2/mae", "r2"),
        (tag_metrics(BIO), None, "entity_f1"),
        (tag_metrics(BIO), "span_f1", "entity_f1"),
        (tag_metrics(BIO), "F1", "entity_f1"),
        (tag_metrics(("NOUN", "VERB")), None, "token_accuracy"),
        (tag_metrics(("NOUN", "VERB")), "accuracy", "token_accuracy"),
        (tag_metrics(("NOUN", "VERB")), "token_accuracy", "token_accuracy"),
        (ANSWERS, None, "f1"),
        (ANSWERS, "squad_f1/em", "f1"),
        (ANSWERS, "em", "exact_match"),
        (REGRESSION, "spearman", "spearman"),
    ],
)
def test_the_names_that_data_sets_give_are_understood(names, wanted, name):
    assert choose_metric(names, wanted) == name


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (objective("single_label", 3).metrics, "f1"),
        (REGRESSION, "accuracy"),
        (tag_metrics(("NOUN", "VERB")), "span_f1"),
    ],
)
def test_a_metric_that_makes_no_sense_is_refused(names, wanted):
    with pytest.raises(InvalidData, match=f"^the metrics of this task are {', '.join(names)}$"):
        choose_metric(names, wanted)


@pytest.mark.parametrize(
    ("metric", "score", "loss", "best", "least", "preferred"),
    [
        ("accuracy", 0.9, 2.0, 0.8, 1.0, True),
        ("accuracy", 0.8, 0.9, 0.8, 1.0, True),
        ("accuracy", 0.8, 1.0, 0.8, 1.0, False),
        ("accuracy", 0.7, 0.1, 0.8, 1.0, False),
        ("mae", 0.7, 2.0, 0.8, 1.0, True),
        ("mae", 0.9, 0.1, 0.8, 1.0, False),
        ("accuracy", 0.0, 9.0, None, math.inf, True),
    ],
)
def test_the_loss_breaks_ties_of_the_metric(metric, score, loss, best, least, preferred):
    assert metrics.is_preferred(metric, score, loss, best, least) == preferred
