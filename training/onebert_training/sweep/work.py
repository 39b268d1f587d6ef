"""Turns jobs into runs and trains them; jobs on the same rows share tokens, activations and steps."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from onebert_encoder.base.base import Base
from onebert_store.errors import InvalidData, OneBertError
from onebert_store.file.format import dumps
from onebert_store.file.manifest import PER_TOKEN
from onebert_store.spec import BaseSpec
from onebert_training.contest.few import make_run, needs_folds, with_folds_measured
from onebert_training.data.dataset import Dataset, load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import Report, train_together
from onebert_training.fit.record import make_record
from onebert_training.fit.run import Run
from onebert_training.sweep.jobs import Job, Outcome, name_job
from onebert_training.sweep.recipe import RunRequest

# Runs that step together by default: a few fill a CPU's caches; a GPU needs more to be busy.
WIDTH = {"cpu": 4, "cuda": 16}
SAMPLE_ROWS = 4


@dataclass(frozen=True)
class JobSet:
    """Jobs on the same rows of the same data, truncated to the same length."""

    dataset: Dataset
    max_length: int
    jobs: tuple[Job, ...]


Execute = Callable[[Sequence[JobSet]], Iterator[Outcome]]


def make_job_sets(requests: Iterable[RunRequest], spec: BaseSpec, dtype: str) -> list[JobSet]:
    """Loads the data of all requests and names every run. Raises InvalidData with the data set's name."""
    by_rows: dict[tuple[str, DataOptions], dict[int, list[RunRequest]]] = {}
    for asked in requests:
        lengths = by_rows.setdefault((asked.source, asked.reading), {})
        lengths.setdefault(asked.settings.max_length, []).append(asked)
    job_sets = []
    for (source, reading), lengths in by_rows.items():
        try:
            dataset = load_dataset(source, reading, keep_few=True)
        except InvalidData as error:
            name = next(iter(lengths.values()))[0].data
            raise InvalidData(f"{name}: {error.detail}") from None
        for max_length, own in lengths.items():
            job_sets.append(JobSet(dataset, max_length, tuple(name_job(asked, dataset, spec, dtype) for asked in own)))
    return job_sets


def make_runs(base: Base, job_set: JobSet) -> list[Run]:
    """A run for every job of a set, in order; a rejected job raises as `Run` does."""
    return _make_runs(TaskInputs(base, job_set.dataset, job_set.max_length), job_set)


def _make_runs(inputs: TaskInputs, job_set: JobSet) -> list[Run]:
    return [make_run(inputs, job.request.settings, job_set.dataset.name) for job in job_set.jobs]


def make_sample_runs(base: Base, job_set: JobSet) -> list[Run]:
    """The same runs on a few rows, to reject jobs early, and per-token data with all labels truncated away."""
    splits = {
        name: split.take(np.arange(min(SAMPLE_ROWS, len(split)))) for name, split in job_set.dataset.splits.items()
    }
    sample = replace(job_set.dataset, splits=splits)
    try:
        if job_set.dataset.task_type in PER_TOKEN:
            TaskInputs(base, job_set.dataset, job_set.max_length).check_targets()
        return _make_runs(TaskInputs(base, sample, job_set.max_length), job_set)
    except OneBertError as error:
        raise type(error)(f"{job_set.dataset.name}: {error.detail}") from None


def train_job_set(
    job_set: JobSet, runs: Sequence[Run], width: int, checkpoint_of: Callable[[str], Path], report: Report
) -> Iterator[Outcome]:
    """Trains the runs of a set, up to `width` in one batch; yields each outcome as its run ends."""
    job_of = {id(run): job for run, job in zip(runs, job_set.jobs, strict=True)}
    for run, result in train_together(runs, width, report, lambda run: checkpoint_of(job_of[id(run)].name)):
        job = job_of[id(run)]
        try:
            if isinstance(result, OneBertError):
                raise result
            result = with_folds_measured(run, result) if needs_folds(run) else result  # noqa: PLW2901
        except OneBertError as error:
            yield Outcome(job.name, error=error.detail)
            continue
        delta = dumps(result.delta) if result.delta is not None else None
        size = len(delta) if delta is not None else None
        record = make_record(run, result, size, job.request.reading.train_rows, job.request.experiment)
        yield Outcome(job.name, record, delta)
