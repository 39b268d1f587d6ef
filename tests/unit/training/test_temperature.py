"""The temperature that the folds of few rows give: by its likelihood on a grid, and in every answer of the file."""

from dataclasses import replace

import numpy as np
import pytest
from scipy.special import expit, log_softmax, softmax
from sklearn.metrics import log_loss

from bases import far_delta, manifest_for, tiny_base
from onebert_encoder.answering.scores import score
from onebert_encoder.base.base import load_base
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import parse_manifest
from onebert_training.data.examples import Split
from onebert_training.fit.settings import Settings
from onebert_training.fit.temperature import (
    MIN_ROWS,
    fit_temperature,
    temperature_folds,
    with_temperature_of_folds,
)
from onebert_training.selection.few import fold_runs, out_of_fold, train_judged
from trainings import short_run


def drawn(rows, seed=0, spread=2.0):
    """Logits, and one label each, drawn by the probabilities that the logits stand for."""
    rng = np.random.default_rng(seed)
    logits = rng.normal(0, spread, (rows, 3)).astype(np.float32)
    gold = (rng.uniform(size=(rows, 1)) > softmax(logits, axis=1).cumsum(axis=1)).sum(axis=1)
    return logits, np.minimum(gold, 2)


def delta_of(task_type="single_label", **decision):
    spec = load_base(str(tiny_base())).spec
    more = {"format": 2, "decision": decision} if decision else {}
    made = manifest_for(spec, labels=3, task_type=task_type, **more)
    return Delta(parse_manifest(made), far_delta(spec, "bitfit", "mean", 3, seed=3))


def rows_of(gold):
    return Split(tuple(map(str, range(len(gold)))), gold)


def test_a_temperature_is_judged_on_texts_that_it_was_not_fitted_to():
    """The gain of rows with one text is that of the temperature of the rows with the other."""
    texts, (logits, gold) = np.arange(100) % 2, drawn(100)
    fold = temperature_folds(Split(tuple(map(str, texts)), gold), "single_label")
    assert len({*zip(texts.tolist(), fold.tolist(), strict=True)}) == len({*fold.tolist()}) == 2
    logits = np.where(texts[:, None], logits * 6, logits * 2)
    flags, temperatures = gold[:, None] == np.arange(3), np.exp(np.linspace(-3, 3, 2001))
    loss = -log_softmax(logits[None] / temperatures[:, None, None], axis=2)[:, np.arange(100), gold]
    best = [loss[:, texts == text].mean(axis=1).argmin() for text in (0, 1)]
    after = (loss[best[0], texts == 1].mean() + loss[best[1], texts == 0].mean()) / 2
    assert fit_temperature(logits, flags, "softmax", fold).after == pytest.approx(after, rel=1e-3)


def test_answers_that_are_too_sure_get_the_likeliest_temperature():
    (logits, gold), sure = drawn(200), 8.0
    got = with_temperature_of_folds(delta_of(positives=["label 0"]), logits, rows_of(gold), 5, larger=sure)
    grid = np.exp(np.linspace(0, 3, 301))
    best = grid[np.argmin([log_loss(gold, softmax(logits * sure / each, axis=1)) for each in grid])]
    assert got.manifest.decision.temperature == pytest.approx(best, rel=0.01)  # the step of the grid
    assert got.manifest.decision.positives == ["label 0"]
    assert got.manifest.format == 2
    why = got.manifest.training["calibration"]
    assert (why["folds"], why["rows"]) == (5, 200)
    assert why["temperature"]["after"] < why["temperature"]["before"]
    # The delta's own logits are as many times as large: its scores are those of the rows.
    np.testing.assert_allclose(
        score(logits.astype(np.float64) * sure, got.manifest).scores, softmax(logits * sure / best, axis=1), atol=0.02
    )


def test_several_labels_are_fitted_by_their_own_likelihood():
    rng = np.random.default_rng(1)
    logits = rng.normal(0, 2, (300, 3)).astype(np.float32)
    gold = (rng.uniform(size=logits.shape) < expit(logits)).astype(np.float32)
    got = with_temperature_of_folds(delta_of("multi_label"), logits * 5, rows_of(gold), 5, 1.0)
    assert got.manifest.decision.temperature == pytest.approx(5, rel=0.15)


@pytest.mark.parametrize(
    ("task_type", "rows", "larger"),
    [("single_label", MIN_ROWS - 1, 1.0), ("regression", 100, 1.0), ("single_label", 100, float("inf"))],
)
def test_where_nothing_can_be_fitted_the_delta_stays(task_type, rows, larger):
    delta = (
        delta_of()
        if task_type == "single_label"
        else Delta(delta_of().manifest.model_copy(update={"task_type": task_type}), delta_of().tensors)
    )
    logits, gold = drawn(rows)
    assert with_temperature_of_folds(delta, logits * 9, rows_of(gold), 5, larger) is delta


@pytest.fixture
def noisy(data):
    """Forty rows with labels by chance, which can be learned by heart and not answered."""
    train = data.splits["train"].take(np.arange(40))
    gold = np.random.default_rng(0).permutation(np.arange(40) % 2)
    return replace(data, splits={"train": replace(train, gold=gold), "test": data.splits["test"]})


@pytest.mark.slow
def test_a_training_of_few_rows_writes_the_temperature_of_its_folds(base, noisy):
    run = short_run(base, noisy, Settings(method="bitfit", epochs=40, learning_rate=2e-2, head_learning_rate=0.2))
    assert not run.validates
    result, folds = train_judged(run), out_of_fold(fold_runs(run))
    why = result.delta.manifest.training["calibration"]["temperature"]
    assert why["larger"] == pytest.approx(result.logit_size / folds.size)
    assert why["larger"] > 1  # folds take fewer steps
    as_large, gold = np.stack(folds.logits).astype(np.float64) * why["larger"], noisy.splits["train"].gold
    grid = np.exp(np.linspace(-1, 3, 801))
    best = grid[np.argmin([log_loss(gold, softmax(as_large / each, axis=1)) for each in grid])]
    if 0.06 < best < 20:
        assert result.delta.manifest.decision.temperature == pytest.approx(best, rel=0.02)
    assert result.delta.manifest.decision.temperature > 1
    # Which answer is best, and so every metric, stays.
    assert result.measured.scores == pytest.approx(run.objective.evaluate(noisy.splits["train"], (), folds.logits))
