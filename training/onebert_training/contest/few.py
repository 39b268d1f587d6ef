"""Few rows: trains on all of them, also by contrast, and scores the result in folds."""

import time
from dataclasses import replace
from pathlib import Path

from onebert_training.contest.contrastive import ContrastiveRun
from onebert_training.contest.folds import fold_runs, measured, out_of_fold
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import Progress, Report, ignore, train
from onebert_training.fit.result import Result
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Settings


def make_run(inputs: TaskInputs, settings: Settings, task: str) -> Run:
    """The run of a user's settings; few rows of a single_label task are also trained by contrast. Raises as `Run`."""
    run = Run(inputs, settings, task)
    # An exact head belongs to the pretrained base, and `reinit` trains without the pretrained weights.
    if run.validates or run.data.task_type != "single_label" or not run.delta_parameters or run.plan.reinit:
        return run
    return ContrastiveRun(inputs, settings, task)


def train_judged(run: Run, report: Report = ignore, checkpoint_file: Path | None = None) -> Result:
    """Trains a run, then its folds for their scores if it has no validation split.

    Args:
        report: called after every step of the run, and then of its folds, with the mean of their steps.
        checkpoint_file: as for `train`; interrupted folds begin anew.

    Raises:
        NotFinite: the loss is no longer a number.
        InvalidManifest: a metric is NaN or infinite.
    """
    result = train(run, report, checkpoint_file)
    return with_folds_measured(run, result, report) if needs_folds(run) else result


def needs_folds(run: Run) -> bool:
    """Whether folds must judge a run: no row is held out, and an exact head is cross-validated when it is found."""
    return not run.validates and not run.plan.exact


def with_folds_measured(run: Run, result: Result, report: Report = ignore) -> Result:
    """Adds fold scores to a result: each row is answered by a run that was not trained on it. May raise NotFinite."""
    started, folds = time.perf_counter(), fold_runs(run)
    steps, planned = dict.fromkeys(folds, 0), sum(fold.steps for fold in folds)

    def of_all(fold: Run, progress: Progress) -> None:
        steps[fold] = progress.step
        if not progress.testing:
            done = sum(steps.values()) // len(folds)
            report(fold, replace(progress, step=done, steps=planned // len(folds), folds=len(folds)))

    report(run, Progress(0, planned // len(folds), folds=len(folds)))
    found = measured(run, out_of_fold(folds, of_all))
    verdict = run.judge(found)
    return replace(
        result.with_provenance({"validation": dict(found.scores), "folds": len(folds)}),
        validation=found.scores,
        folds=len(folds),
        measured=found,
        verdict=verdict if result.test is None else replace(result.verdict, useful=verdict.useful),
        seconds=result.seconds + time.perf_counter() - started,
    )
