"""Few rows: all are trained on, the last step is kept, and folds answer every row by a run that never saw it."""

from collections import Counter
from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from onebert_store.errors import InvalidData, InvalidSettings
from onebert_store.file.delta import HEAD_BIAS, HEAD_WEIGHT
from onebert_store.file.format import dumps, loads
from onebert_training.data.dataset import load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.data.splitting import Fold
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.keeping import jackknife_score, unbeaten
from onebert_training.fit.loop import take_step, train
from onebert_training.fit.record import make_record
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings
from onebert_training.fit.state import State
from onebert_training.selection.contrastive import ContrastiveRun
from onebert_training.selection.few import fold_runs, out_of_fold, train_judged
from onebert_training.selection.selection import train_and_select
from trainings import short_run

pytestmark = pytest.mark.slow

QUICK = Settings(epochs=4, learning_rate=5e-3)


@pytest.fixture(scope="module")
def few(data):
    """The rows of `data` without its validation split; every seventh text is there twice."""
    rows = np.array([row for i in range(len(data.splits["train"])) for row in [i] * (1 + (i % 7 == 0))])
    return replace(data, splits={"train": data.splits["train"].take(rows), "test": data.splits["test"]})


run_of = partial(short_run, settings=QUICK)


def test_folds_hold_out_every_row_once_and_no_text_is_on_two_sides(base, few):
    runs = fold_runs(run_of(base, few))
    train_split = few.splits["train"]
    assert len(runs) == 5
    assert sorted(row for run in runs for row in run.held_out.tolist()) == list(range(len(train_split)))
    for run in runs:
        assert sorted([*run.rows.tolist(), *run.held_out.tolist()]) == list(range(len(train_split)))
        texts = [{train_split.texts[row] for row in rows} for rows in (run.rows, run.held_out)]
        assert not texts[0] & texts[1]
        praise = np.mean(train_split.gold[run.held_out])
        assert 0.2 < praise < 0.8  # half of the rows are praise; a fold has about eleven
        drawn = Counter(row for step in range(run.steps) for row in run.batch_at(step).tolist())
        assert drawn == dict.fromkeys(run.rows.tolist(), run.schedule.epochs)


def test_a_row_out_of_fold_is_answered_as_by_a_run_on_a_data_set_without_it(base, few):
    runs = fold_runs(run_of(base, few, method="layernorm"))
    logits = out_of_fold(runs).logits
    held_out = runs[1].held_out
    train_split = few.splits["train"]
    parts = {"train": train_split.take(runs[1].rows), "test": train_split.take(held_out)}
    alone = run_of(base, replace(few, splits=parts), method="layernorm", max_steps=runs[1].steps)
    result = train(alone)
    wanted = np.stack(alone.logits(alone.model(_values(alone)), "test"))
    got = np.stack([logits[row] for row in held_out])
    # As in test_together.py: rounding differs with the neighbors in a batch, and Adam magnifies a little of it.
    np.testing.assert_allclose(got, wanted, rtol=0, atol=0.02 * np.abs(wanted).max())
    assert result.steps == runs[1].steps
    untrained = np.stack(alone.logits(alone.model(alone.init_values()), "test"))
    assert np.abs(untrained - wanted).max() > 0.2 * np.abs(wanted).max()


def test_a_start_that_a_task_cannot_have_is_refused(base, questions):
    with pytest.raises(InvalidSettings, match="a span task has no exact head to start from; start fresh"):
        run_of(base, questions, start="head")


def _values(run):
    """What a run is after its last step, made by its steps alone."""
    state = State(run.init_values())
    while state.step < run.steps:
        take_step([(run, state)])
    return state.values


@pytest.mark.parametrize(
    ("rows", "epochs", "steps", "every"), [(12, 100, 100, 25), (48, 34, 102, 26), (640, 4, 160, 40)]
)
def test_few_rows_get_enough_steps_beside_a_validation_split_too(base, data, rows, epochs, steps, every):
    chosen = np.resize(np.arange(48), rows)
    data = replace(data, splits={**data.splits, "train": data.splits["train"].take(chosen)})
    run = run_of(base, data, epochs=None)
    assert (run.schedule.epochs, run.steps, run.schedule.eval_every) == (epochs, steps, every)
    # What a user asks for is as it is.
    asked = run_of(base, data, epochs=30)
    each = run.schedule.steps_per_epoch
    assert (asked.steps, asked.schedule.eval_every) == (30 * each, each)
    short = run_of(base, data, epochs=None, max_steps=9)
    assert short.schedule.eval_every == max(each, 3)  # four times in nine steps, where an epoch is one step


def test_the_scores_of_folds_stand_where_those_of_a_validation_split_would(base, few):
    run = run_of(base, few, batch_size=4, epochs=10)
    result = train_judged(run)
    out = np.stack(out_of_fold(fold_runs(run)).logits)
    accuracy = np.mean(out.argmax(axis=1) == few.splits["train"].gold)
    assert result.validation["accuracy"] == pytest.approx(accuracy)
    assert accuracy >= 0.8
    assert result.folds == 5
    training = loads(dumps(result.delta)).manifest.training
    assert (training["validation"], training["folds"]) == (dict(result.validation), 5)
    record = make_record(run, result, None)
    assert (record["folds"], record["digest"]) == (5, result.delta.digest)
    assert record["settings"]["epochs"] == 10


def test_added_rows_are_trained_on_and_not_measured(base, few):
    before = few.splits["train"]
    more = replace(before, texts=tuple(f"{text}, they said" for text in before.texts), gold=1 - before.gold)
    whole = before.joined(more.from_origin("feedback"))
    run = run_of(base, replace(few, splits={**few.splits, "train": whole}), epochs=1)
    assert run.fingerprint != run_of(base, few, epochs=1).fingerprint, "no other rows' checkpoint is continued"
    selection = train_and_select(run)
    measured = selection.result.measured
    answered = np.stack(measured.logits).argmax(axis=1)
    assert measured.scores["accuracy"] == pytest.approx(np.mean(answered == before.gold))
    assert len(run.baselines.answers.logits) == len(before)
    constant = run.baselines.constant
    assert constant.scores["validation"]["accuracy"] in (np.mean(before.gold), 1 - np.mean(before.gold))
    assert {len(fold.rows) + len(fold.held_out) for fold in fold_runs(run)} == {len(whole)}


def test_a_run_with_a_validation_split_is_judged_by_it(base, data):
    result = train_judged(run_of(base, data))
    assert (result.folds, result.logit_size) == (0, None)
    assert "calibration" not in result.delta.manifest.training
    assert dumps(result.delta) == dumps(train(run_of(base, data)).delta)


def test_of_few_rows_none_are_held_out_unless_it_is_asked(tmp_path):
    path = tmp_path / "few.csv"
    path.write_text("text,label\n" + "".join(f"t{i},{'ab'[i % 2]}\n" for i in range(8)))

    def load(**options):
        return load_dataset(str(path), DataOptions(**options), keep_few=True)

    data = load()
    assert {name: len(split) for name, split in data.splits.items()} == {"train": 8}
    assert any("8 training rows are too few to spare any" in note for note in data.notes)
    with pytest.raises(InvalidData, match="at least 10 training rows"):
        load(validation_share=0.5)
    path.write_text("text,label\n" + "".join(f"t{i},{'ab'[i % 2]}\n" for i in range(400)))
    assert sum(map(len, load().splits.values())) == 400
    assert "validation" in load().splits
    assert "validation" not in load(train_rows=100).splits
    assert len(load(train_rows=100, validation_rows=5).splits["validation"]) == 5
    path.write_text("text,label\n" + "same,a\nsame,b\n" * 4)
    with pytest.raises(InvalidData, match="all training rows have the same text"):
        load()


@pytest.mark.parametrize("kind", [Run, ContrastiveRun])
def test_labels_that_a_fold_holds_out_have_no_part_in_where_it_starts(base, few, kind):
    asked = replace(QUICK, start="head")
    (fold, *_) = fold_runs(kind(TaskInputs(base, few, 40), asked, "tone"))
    train_split = few.splits["train"]
    gold = train_split.gold.copy()
    gold[fold.held_out] = 1 - gold[fold.held_out]
    turned = replace(few, splits={**few.splits, "train": replace(train_split, gold=gold)})
    other = kind(TaskInputs(base, turned, 40), asked, "tone", Fold(fold.rows, fold.held_out))
    if kind is ContrastiveRun:  # the strength of its head is fixed; that of another is chosen by all rows
        for name in (HEAD_WEIGHT, HEAD_BIAS):
            assert torch.equal(fold.init_values()[name], other.init_values()[name])
    assert torch.equal(torch.from_numpy(fold.exact_head(1.0).weight), torch.from_numpy(other.exact_head(1.0).weight))
    whole = kind(TaskInputs(base, few, 40), asked, "tone")
    assert not torch.equal(fold.init_values()[HEAD_WEIGHT], whole.init_values()[HEAD_WEIGHT])


def test_a_result_is_judged_by_the_rows_that_decide_and_by_their_standard_error(base, few):
    run = run_of(base, few, batch_size=4, epochs=10)
    result = train_judged(run)
    gold = few.splits["train"].gold
    right = replace(result.measured, logits=[np.eye(2, dtype=np.float32)[label] for label in gold])
    wrong = replace(result.measured, logits=[logit[::-1] for logit in right.logits])
    assert jackknife_score(run, right).is_ahead_of(jackknife_score(run, wrong))
    assert unbeaten(run, wrong, jackknife_score(run, wrong), run.baselines) == "constant"
    assert unbeaten(run, right, jackknife_score(run, right), run.baselines) is None
    # One row more than a constant has is no reason to publish.
    constant = [np.eye(2, dtype=np.float32)[np.bincount(gold).argmax()]] * len(gold)
    one_more = [right.logits[i] if i == int(gold.argmin()) else constant[i] for i in range(len(gold))]
    as_good = replace(right, logits=one_more)
    assert unbeaten(run, as_good, jackknife_score(run, as_good), run.baselines) == "constant"
    # A head that is behind, or ahead by a row, takes nothing from a result; one that is really ahead does.
    answers = run.baselines.answers
    assert not jackknife_score(run, answers).is_ahead_of(jackknife_score(run, right))
    assert jackknife_score(run, replace(answers, logits=right.logits)).is_ahead_of(jackknife_score(run, wrong))
