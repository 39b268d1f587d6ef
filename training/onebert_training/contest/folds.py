"""Folds: repeats a run on parts of its rows, so that each row is answered by a run that never saw it."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, nan

import numpy as np
from numpy.typing import NDArray

from onebert_store.errors import OneBertError
from onebert_training.data.splitting import SPLIT_SEED, fold_of
from onebert_training.fit.loop import Report, ignore, train_together
from onebert_training.fit.run import Run
from onebert_training.fit.schedule import Schedule
from onebert_training.fit.settings import Settings
from onebert_training.heads.seen import FOLDS
from onebert_training.tasks.objective import Logits, Measurement

# A fold takes this share of the run's steps, and at least LEAST_STEPS if the run has them: a run that was asked for
# fewer is not judged by still fewer (decision 44).
SHARE, LEAST_STEPS = 0.6, 60


def fold_runs(run: Run, folds: int = FOLDS) -> list[Run]:
    """One run per fold (fewer for few different texts), in fewer steps on all other rows; they share activations."""
    settings = _settings(run)
    return [type(run)(run.inputs, settings, run.task, rows) for rows in _rows(run, folds)]


def fold_steps(run: Run) -> list[int]:
    """The steps of each run of `fold_runs`."""
    return [Schedule.of(_settings(run), len(rows), validates=False).steps for rows in _rows(run)]


def _rows(run: Run, folds: int = FOLDS) -> list[NDArray[np.int64]]:
    fold = fold_of(run.data.splits["train"], run.data.task_type, folds, SPLIT_SEED)
    return [np.flatnonzero(fold != one) for one in np.unique(fold)]


def _settings(run: Run) -> Settings:
    return replace(run.settings, max_steps=max(ceil(SHARE * run.steps), min(LEAST_STEPS, run.steps)))


def out_of_fold(runs: Sequence[Run], report: Report = ignore) -> list[Logits]:
    """Trains fold runs together; returns each training row's logits by the run that did not see it."""
    found: dict[int, Logits] = {}
    for run, result in train_together(runs, len(runs), report, lambda _: None):
        if isinstance(result, OneBertError):
            raise result
        found |= zip(run.held_out.tolist(), result.held_out, strict=True)
    return [found[row] for row in range(len(found))]


def measured(run: Run, logits: Sequence[Logits]) -> Measurement:
    """Metrics of the folds' logits for the training rows; the loss is not measured and NaN."""
    split, tokens = run.data.splits["train"], run.inputs.splits["train"].tokens
    return Measurement("train", run.objective.evaluate(split, tokens, logits), nan, logits)
