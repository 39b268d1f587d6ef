"""Jobs made into runs and trained: lots of jobs on the same rows share tokens, activations and every step."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from onebert_encoder.base import Base
from onebert_store.errors import NotFinite
from onebert_store.format import dumps
from onebert_training.cells import Columns
from onebert_training.data import Dataset, load_dataset
from onebert_training.loop import Report, train_together
from onebert_training.record import make_record
from onebert_training.run import Run, TaskInputs
from onebert_training.sweep.jobs import Job, Outcome


@dataclass(frozen=True)
class Lot:
    """Jobs on the same rows of the same data, cut to the same length."""

    dataset: Dataset
    max_length: int
    jobs: tuple[Job, ...]


def make_lots(jobs: Iterable[Job]) -> list[Lot]:
    """Loads the data of every job, so that bad data is known before the first run.

    Raises:
        InvalidData: one sentence on what is wrong with a data set.
    """
    by_rows: dict[tuple[str, int | None, float | None, int], list[Job]] = {}
    for job in jobs:
        asked = job.request
        key = (asked.source, asked.train_rows, asked.validation_share, asked.settings.max_length)
        by_rows.setdefault(key, []).append(job)
    return [
        Lot(
            load_dataset(source, Columns(), train_rows=rows, validation_share=share),
            max_length,
            tuple(own),
        )
        for (source, rows, share, max_length), own in by_rows.items()
    ]


def make_runs(base: Base, lot: Lot) -> list[Run]:
    """A run for every job of a lot, in order.

    Raises:
        InvalidMethod, InvalidSettings, InvalidData, TooLarge: what a run cannot be asked; nothing was trained.
    """
    inputs = TaskInputs(base, lot.dataset, lot.max_length)
    return [Run(inputs, job.request.settings, lot.dataset.name) for job in lot.jobs]


def train_lot(
    lot: Lot, runs: Sequence[Run], width: int, checkpoint_of: Callable[[str], Path], report: Report
) -> Iterator[Outcome]:
    """Trains the runs of a lot, up to `width` in one batch; yields what came of each as it ends."""
    job_of = {id(run): job for run, job in zip(runs, lot.jobs, strict=True)}
    for run, result in train_together(runs, width, report, lambda run: checkpoint_of(job_of[id(run)].name)):
        job = job_of[id(run)]
        if isinstance(result, NotFinite):
            yield Outcome(job.name, error=result.detail)
            continue
        delta = dumps(result.delta) if result.delta is not None else None
        size = len(delta) if delta is not None else None
        record = make_record(run, result, size, job.request.train_rows, job.request.experiment)
        yield Outcome(job.name, record, delta)
