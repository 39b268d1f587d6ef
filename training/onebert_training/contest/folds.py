"""Folds: a run again on parts of its rows, so that each row is answered by one that never saw it."""

from collections.abc import Sequence
from dataclasses import replace
from math import ceil, nan

import numpy as np
from numpy.typing import NDArray

from onebert_store.errors import OneBertError
from onebert_training.data.splitting import SPLIT_SEED, fold_of
from onebert_training.fit.evaluation import Logits, Measurement
from onebert_training.fit.loop import Report, ignore, train_together
from onebert_training.fit.run import Run
from onebert_training.fit.schedule import Schedule
from onebert_training.fit.settings import Settings
from onebert_training.heads.seen import FOLDS

# The part of a run's steps that each of its folds takes, and steps that it takes where the run has so many: a run that
# was asked for fewer is not judged by fewer still (decision 44).
SHARE, LEAST_STEPS = 0.6, 60


def fold_runs(run: Run, folds: int = FOLDS) -> list[Run]:
    """A run for each fold, in fewer steps on all rows but the fold's; they share tokens and kept activations.

    Args:
        run: trains on all rows.
        folds: how many; fewer where there are fewer different texts.
    """
    settings = _settings(run)
    return [type(run)(run.inputs, settings, run.task, rows) for rows in _rows(run, folds)]


def fold_steps(run: Run) -> list[int]:
    """How many steps each run of `fold_runs` takes."""
    return [Schedule.of(_settings(run), len(rows), validates=False).steps for rows in _rows(run)]


def _rows(run: Run, folds: int = FOLDS) -> list[NDArray[np.int64]]:
    """The training rows of each fold's run: all but the fold's."""
    fold = fold_of(run.data.splits["train"], run.data.task_type, folds, SPLIT_SEED)
    return [np.flatnonzero(fold != one) for one in np.unique(fold)]


def _settings(run: Run) -> Settings:
    return replace(run.settings, max_steps=max(ceil(SHARE * run.steps), min(LEAST_STEPS, run.steps)))


def out_of_fold(runs: Sequence[Run], report: Report = ignore) -> list[Logits]:
    """Trains the runs of `fold_runs` together; logits of every training row by the run that did not train on it.

    Raises:
        NotFinite: the loss of a fold is no longer a number.
    """
    found: dict[int, Logits] = {}
    for run, result in train_together(runs, len(runs), report, lambda _: None):
        if isinstance(result, OneBertError):
            raise result
        found |= zip(run.held_out.tolist(), result.held_out, strict=True)
    return [found[row] for row in range(len(found))]


def measured(run: Run, logits: Sequence[Logits]) -> Measurement:
    """Metrics of the logits that folds gave for the training rows; the loss is not measured and NaN."""
    split, tokens = run.data.splits["train"], run.inputs.splits["train"].tokens
    return Measurement("train", run.objective.evaluate(split, tokens, logits), nan, logits)
