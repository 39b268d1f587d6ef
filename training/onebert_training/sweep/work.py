"""Jobs made into runs and trained: lots of jobs on the same rows share tokens, activations and every step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from onebert_encoder.base import Base
from onebert_store.errors import InvalidData, OneBertError
from onebert_store.format import dumps
from onebert_store.spec import BaseSpec
from onebert_training.cells import Columns
from onebert_training.data import Dataset, load_dataset
from onebert_training.loop import Report, train_together
from onebert_training.recipe import RunRequest
from onebert_training.record import make_record
from onebert_training.run import Run, TaskInputs
from onebert_training.sweep.jobs import Job, Outcome, name_job

# What steps together: on a CPU a batch of a few runs already fills the caches, a GPU wants more.
WIDTH = {"cpu": 4, "cuda": 16}
SAMPLE_ROWS = 4


@dataclass(frozen=True)
class Lot:
    """Jobs on the same rows of the same data, cut to the same length."""

    dataset: Dataset
    max_length: int
    jobs: tuple[Job, ...]


Execute = Callable[[Sequence[Lot]], Iterator[Outcome]]


def make_lots(requests: Iterable[RunRequest], spec: BaseSpec, dtype: str) -> list[Lot]:
    """Loads the data that is asked for and names every run.

    Raises:
        InvalidData: one sentence on which data set is wrong and why.
    """
    by_rows: dict[tuple[str, int | None, float | None], dict[int, list[RunRequest]]] = {}
    for asked in requests:
        lengths = by_rows.setdefault((asked.source, asked.train_rows, asked.validation_share), {})
        lengths.setdefault(asked.settings.max_length, []).append(asked)
    lots = []
    for (source, rows, share), lengths in by_rows.items():
        try:
            dataset = load_dataset(source, Columns(), train_rows=rows, validation_share=share)
        except InvalidData as error:
            name = next(iter(lengths.values()))[0].data
            raise InvalidData(f"{name}: {error.detail}") from None
        for max_length, own in lengths.items():
            lots.append(Lot(dataset, max_length, tuple(name_job(asked, dataset, spec, dtype) for asked in own)))
    return lots


def make_runs(base: Base, lot: Lot) -> list[Run]:
    """A run for every job of a lot, in order.

    Raises:
        InvalidMethod, InvalidSettings, InvalidData, InvalidManifest, TooLarge: what a run cannot be asked.
    """
    inputs = TaskInputs(base, lot.dataset, lot.max_length)
    inputs.check_targets()
    return _make_runs(inputs, lot)


def _make_runs(inputs: TaskInputs, lot: Lot) -> list[Run]:
    return [Run(inputs, job.request.settings, lot.dataset.name) for job in lot.jobs]


def make_sample_runs(base: Base, lot: Lot) -> list[Run]:
    """The same runs on a few rows: refused at once where the whole ones would be refused in hours.

    Raises:
        InvalidMethod, InvalidSettings, InvalidData, InvalidManifest, TooLarge: what a run cannot be asked.
    """
    splits = {name: split.take(np.arange(min(SAMPLE_ROWS, len(split)))) for name, split in lot.dataset.splits.items()}
    sample = replace(lot.dataset, splits=splits)
    try:
        return _make_runs(TaskInputs(base, sample, lot.max_length), lot)
    except OneBertError as error:
        raise type(error)(f"{lot.dataset.name}: {error.detail}") from None


def train_lot(
    lot: Lot, runs: Sequence[Run], width: int, checkpoint_of: Callable[[str], Path], report: Report
) -> Iterator[Outcome]:
    """Trains the runs of a lot, up to `width` in one batch; yields what came of each as it ends."""
    job_of = {id(run): job for run, job in zip(runs, lot.jobs, strict=True)}
    for run, result in train_together(runs, width, report, lambda run: checkpoint_of(job_of[id(run)].name)):
        job = job_of[id(run)]
        if isinstance(result, OneBertError):
            yield Outcome(job.name, error=result.detail)
            continue
        delta = dumps(result.delta) if result.delta is not None else None
        size = len(delta) if delta is not None else None
        record = make_record(run, result, size, job.request.train_rows, job.request.experiment)
        yield Outcome(job.name, record, delta)
