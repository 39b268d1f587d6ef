"""Model selection in a training: the candidates, the selected one, and equal bytes after an interruption."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from onebert_store.file.delta import HEAD_BIAS, HEAD_WEIGHT
from onebert_store.file.format import dumps
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.keeping import jackknife_score
from onebert_training.fit.settings import Settings
from onebert_training.selection.few import make_run
from onebert_training.selection.selection import started_checkpoint, train_and_select
from onebert_training.tasks.objective import Measurement
from trainings import interrupted, short_run

pytestmark = pytest.mark.slow

QUICK = Settings(epochs=4, batch_size=8, learning_rate=5e-3, patience=0)  # 24 steps, of which 2 are beside each other


run_of = partial(short_run, settings=QUICK)


def numbers_of(data):
    """The labels as numbers, far from zero."""
    splits = {
        name: replace(split, gold=(100 + 40 * split.gold).astype(np.float32)) for name, split in data.splits.items()
    }
    return replace(data, task_type="regression", labels=("score",), splits=splits)


@pytest.fixture(params=["data", "numbers", "tags"])
def any_data(request, data, tags):
    """One label a text, a number a text, a tag a word."""
    return {"data": data, "numbers": numbers_of(data), "tags": tags}[request.param]


def test_what_validation_prefers_is_kept_and_said(base, any_data):
    selected = train_and_select(run_of(base, any_data))
    scores = selected.facts["validation"]
    assert set(scores) == {"fresh", "head", "alone"}
    assert selected.facts["kept"] == "fresh" or scores[selected.facts["kept"]] > scores["fresh"]
    assert selected.result.validation[selected.result.metric] == scores[selected.facts["kept"]]
    assert selected.facts["steps"] == {"fresh": 24, "head": 2}
    assert all(f"{score:.4f}" in selected.line for score in scores.values())


@pytest.fixture
def few(data):
    """Rows without a validation split, and the same with numbers."""
    labeled = replace(data, splits={"train": data.splits["train"], "test": data.splits["test"]})
    return labeled, numbers_of(labeled)


def test_of_few_rows_the_head_alone_is_kept_where_it_is_clearly_ahead_in_folds(base, few):
    run = run_of(base, few[1], learning_rate=1e-9, head_learning_rate=1e-9, epochs=1)
    selected = train_and_select(run)
    scores = selected.facts["validation"]
    assert (selected.facts["kept"], set(scores)) == ("alone", {"fresh", "alone"})
    assert (
        scores["alone"] == selected.result.validation["pearson"] == run.baselines.exact.scores["validation"]["pearson"]
    )
    assert scores["alone"] > scores["fresh"]
    assert set(selected.result.delta.tensors) == {HEAD_WEIGHT, HEAD_BIAS}
    assert selected.result.delta.manifest.method == "head"
    assert (selected.result.folds, selected.result.delta.manifest.training["folds"]) == (5, 5)
    assert f"pearson {scores['alone']:.4f} in 5 folds; trained from a fresh head {scores['fresh']:.4f}" in selected.line


def test_of_few_rows_what_was_trained_is_kept_where_the_head_alone_is_no_better(base, few):
    run = make_run(TaskInputs(base, few[0], 128), replace(QUICK, epochs=17, max_steps=80), "tone")
    seen = []
    selected = train_and_select(run, lambda candidate, progress: seen.append((candidate, progress)))
    assert (selected.facts["kept"], selected.run) == ("head", run)
    assert selected.result.folds == 5
    assert selected.facts["validation"]["head"] == selected.result.validation["accuracy"]
    # Its folds take half as long again, and are seen to move on.
    assert {progress.step for candidate, progress in seen if candidate.held_out.size} == set(range(25))


def test_an_early_lead_does_not_end_the_run_that_was_asked_for(base, data):
    """A run that learns nothing is behind after a tenth of its steps, and is trained to its end all the same."""
    selected = train_and_select(run_of(base, data, learning_rate=1e-9, head_learning_rate=1e-9))
    assert selected.facts["validation"]["head"] > selected.facts["validation"]["fresh"]
    assert selected.facts["steps"] == {"fresh": 24, "head": 2}


def test_the_head_alone_is_kept_where_training_comes_to_nothing(base, data):
    run = run_of(base, data, learning_rate=1e-9, max_steps=1)
    selected = train_and_select(run)
    assert selected.facts["kept"] == "alone"
    assert selected.run.method.text == "head"
    strengths = (selected.result.strength, selected.result.delta.manifest.training["strength"])
    assert strengths == (run.baselines.head.strength,) * 2
    assert set(selected.result.delta.tensors) == {HEAD_WEIGHT, HEAD_BIAS}
    assert selected.result.delta.manifest.method == "head"
    assert selected.result.validation == selected.run.baselines.exact.scores["validation"]


def test_a_run_that_starts_from_the_exact_head_starts_there(base, data):
    run = run_of(base, data, start="head")
    assert run.evaluate(run.model(run.init_values()), "validation").scores == run.baselines.exact.scores["validation"]
    assert run.fingerprint != run_of(base, data, start="fresh").fingerprint


@pytest.mark.parametrize("method", ["full", "reinit+bitfit"])
def test_what_changes_the_base_is_trained_alone(base, data, method):
    selected = train_and_select(run_of(base, data, method=method, max_steps=12))
    assert selected.facts is None
    assert selected.result.delta is None


# 60 steps, 6 beside each other, an evaluation at each.
OFTEN = {"epochs": 10, "evals_per_epoch": 6}


@pytest.fixture(scope="module")
def whole(base, data):
    return train_and_select(run_of(base, data, **OFTEN))


@pytest.mark.parametrize("at", [1, 2, 3, 9])
def test_an_interrupted_selection_ends_in_the_same_bytes(base, data, tmp_path, whole, at):
    file = tmp_path / "tone.checkpoint"

    with interrupted(lambda _, progress: progress.validation is not None and progress.step == at) as report:
        train_and_select(run_of(base, data, **OFTEN), report, file)
    assert file.exists()
    assert started_checkpoint(file).exists()
    notes = []
    again = train_and_select(run_of(base, data, **OFTEN), lambda _, progress: notes.append(progress.note), file)
    assert notes[0] == f"continued at step {at}"
    assert again.facts == whole.facts
    assert dumps(again.result.delta) == dumps(whole.result.delta)


@pytest.fixture
def sure_heads_overflow(monkeypatch):
    """A loss that is no number where a training step's logits are sure, as those of an exact head are from the start.

    Logits that overflow by themselves would have to do so in the one run of two that have equal rates.
    """
    whole = torch.nn.functional.cross_entropy

    def overflowing(logits, *args, **kwargs):
        sure = logits.requires_grad and float(logits.detach().abs().max()) > 1
        return whole(logits, *args, **kwargs) * (float("nan") if sure else 1)

    monkeypatch.setattr(torch.nn.functional, "cross_entropy", overflowing)


@pytest.mark.parametrize("at", [1, 9])
def test_a_short_run_that_is_no_longer_finite_is_left_out_for_good(base, data, tmp_path, sure_heads_overflow, at):
    changes = {"epochs": 10, "evals_per_epoch": 6, "learning_rate": 1e-9, "head_learning_rate": 1e-9}
    whole = train_and_select(run_of(base, data, **changes))
    assert set(whole.facts["validation"]) == {"fresh", "alone"}
    assert whole.facts["steps"] == {"fresh": 60, "head": 1}
    assert whole.facts["ended"].startswith("the loss is no longer a number at step 1")
    assert f"the run from the exact head is left out: {whole.facts['ended']}" in whole.line
    file, notes = tmp_path / "tone.checkpoint", []

    with interrupted(lambda _, progress: progress.step == at) as report:
        train_and_select(run_of(base, data, **changes), report, file)
    again = train_and_select(run_of(base, data, **changes), lambda _, progress: notes.append(progress.note), file)
    assert notes[0] == f"continued at step {at}"
    assert again.facts == whole.facts
    assert dumps(again.result.delta) == dumps(whole.result.delta)


def test_a_lead_of_tags_and_of_answers_in_a_context_is_that_of_their_metrics(base, tags, questions):
    draw = np.random.default_rng(0)
    for dataset in (tags, questions):
        run = run_of(base, dataset)
        split, tokens = dataset.splits["validation"], run.inputs.splits["validation"].tokens
        sides = [
            [draw.normal(size=(len(text), len(dataset.labels))).astype(np.float32) for text in tokens] for _ in "ab"
        ]
        scores = [run.objective.evaluate(split, tokens, logits)[run.metric] for logits in sides]
        first, other = (jackknife_score(run, Measurement("validation", {}, 0.0, logits)) for logits in sides)
        lead, error = first.lead_over(other)
        assert lead == pytest.approx(scores[0] - scores[1])
        # Of 20 examples each is a block: the jackknife over examples.
        assert len(split) == 20
        left_out = []
        for row in range(20):
            rest = np.delete(np.arange(20), row)
            part, tokens_of_part = split.take(rest), [tokens[i] for i in rest]
            first, other = (
                run.objective.evaluate(part, tokens_of_part, [logits[i] for i in rest])[run.metric] for logits in sides
            )
            left_out.append(first - other)
        assert error == pytest.approx(np.sqrt(19 * np.var(left_out)))
