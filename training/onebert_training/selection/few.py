"""Few rows: trains on all of them, also by contrast, scores the result in folds, and chooses how few pairs are read."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil, nan
from pathlib import Path

import numpy as np

from onebert_store.errors import OneBertError
from onebert_store.file.manifest import PER_TOKEN, SIAMESE
from onebert_training.data.splitting import SPLIT_SEED, Fold, make_folds
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import Progress, Report, ignore, train, train_together
from onebert_training.fit.result import Result
from onebert_training.fit.run import Run
from onebert_training.fit.settings import Schedule, Settings
from onebert_training.heads.baselines import FOLDS, OUT_OF_FOLD
from onebert_training.methods.methods import parse_method
from onebert_training.selection.contrastive import ContrastiveRun
from onebert_training.tasks.metrics import is_better
from onebert_training.tasks.objective import Logits, Measurement

# A fold takes this share of the run's steps, and at least LEAST_STEPS if the run has them: a run that was asked for
# fewer is not judged by still fewer. A fold of a warm run starts from its own exact head (decision 44).
SHARE, LEAST_STEPS = 0.6, 60
WARM_SHARE, WARM_STEPS = 0.3, 20
FEW = 1000
"""From this number of training pairs on, training does better with both texts as one (decision 54)."""


def fold_runs(run: Run, folds: int = FOLDS) -> list[Run]:
    """One run per fold (fewer for few different texts), in fewer steps on the other rows; they share activations."""
    settings = _settings(run)
    return [type(run)(run.inputs, settings, run.task, fold) for fold in _folds(run, folds)]


def fold_steps(run: Run) -> list[int]:
    """The steps of each run of `fold_runs`."""
    settings = _settings(run)
    return [Schedule.for_run(settings, len(fold.rows), False, run.warm).steps for fold in _folds(run)]


def _folds(run: Run, folds: int = FOLDS) -> list[Fold]:
    return make_folds(run.data.splits["train"], run.data.task_type, folds, SPLIT_SEED)


def _settings(run: Run) -> Settings:
    share, least = (WARM_SHARE, WARM_STEPS) if run.warm else (SHARE, LEAST_STEPS)
    return replace(run.settings, max_steps=max(ceil(share * run.steps), min(least, run.steps)))


@dataclass(frozen=True)
class OutOfFold:
    """Each own row's logits by the run that did not see it; `size` is that of logits of rows that were seen."""

    logits: list[Logits]
    size: float | None


def out_of_fold(runs: Sequence[Run], report: Report = ignore) -> OutOfFold:
    """Trains fold runs together, and answers the rows that each held out."""
    logits, sizes = dict[int, Logits](), list[float]()
    for run, result in train_together(runs, len(runs), report, lambda _: None):
        if isinstance(result, OneBertError):
            raise result
        logits |= zip(run.held_out.tolist(), result.held_out, strict=True)
        sizes += [] if result.logit_size is None else [result.logit_size]
    size = float(np.sqrt(np.mean(np.square(sizes)))) if sizes else None
    return OutOfFold([logits[row] for row in sorted(logits)], size)


def measure_folds(run: Run, logits: Sequence[Logits]) -> Measurement:
    """Metrics of the folds' logits for a task's own rows; the loss is not measured and NaN."""
    return Measurement(OUT_OF_FOLD, run.objective.evaluate(*run.rows_of(OUT_OF_FOLD), logits), nan, logits)


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
    """Adds fold scores to a result: each own row is answered by a run that did not see it. May raise NotFinite."""
    started, folds = time.perf_counter(), fold_runs(run)
    steps, planned = dict.fromkeys(folds, 0), sum(fold.steps for fold in folds)

    def of_all(fold: Run, progress: Progress) -> None:
        steps[fold] = progress.step
        if not progress.testing:
            done = sum(steps.values()) // len(folds)
            report(fold, replace(progress, step=done, steps=planned // len(folds), folds=len(folds)))

    report(run, Progress(0, planned // len(folds), folds=len(folds)))
    answered = out_of_fold(folds, of_all)
    measurement = measure_folds(run, answered.logits)
    verdict = run.judge(measurement)
    facts = {"validation": dict(measurement.scores), "folds": len(folds)}
    larger = result.logit_size / answered.size if result.logit_size and answered.size else 1.0
    judged = replace(result.with_provenance(facts), folds=len(folds)).with_measured(run, measurement, larger)
    return replace(
        judged,
        validation=measurement.scores,
        verdict=verdict if result.test is None else replace(result.verdict, useful=verdict.useful),
        seconds=result.seconds + time.perf_counter() - started,
    )


def read_pairs(inputs: TaskInputs, settings: Settings, task: str) -> Settings:
    """Settings with the pooling by which the frozen base answers few pairs better; raises as `Run`, NotFinite."""
    kind, pairs = inputs.data.task_type, len(inputs.data.splits["train"])
    open_to_both = inputs.data.has_pairs and kind not in PER_TOKEN and settings.pooling is None
    if not open_to_both or pairs >= FEW or not _gives_a_delta(settings, inputs):
        return settings
    alone = replace(settings, method="head")
    as_one, apart = (Run(inputs, replace(alone, pooling=pooling), task) for pooling in ("mean", SIAMESE))
    joint, separate = (run.baselines.answers for run in (as_one, apart))
    if joint is None or separate is None:
        return settings
    ahead = is_better(apart.metric, separate.scores[apart.metric], joint.scores[apart.metric])
    return replace(settings, pooling=SIAMESE if ahead else "mean")


def _gives_a_delta(settings: Settings, inputs: TaskInputs) -> bool:
    """Whether the method's result is a delta: no checkpoint can compare two texts."""
    base = inputs.base
    return parse_method(settings.method).plan(base.anatomy, "mean", base.spec.num_parameters).servable
