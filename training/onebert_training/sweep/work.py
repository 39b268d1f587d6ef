"""Jobs (the named runs of a recipe), the folder of their results, and their runs; jobs on the same rows share work."""

import hashlib
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from onebert_encoder.base.base import Base
from onebert_store.disk import write_whole
from onebert_store.errors import InvalidData, OneBertError
from onebert_store.file.format import dumps
from onebert_store.file.manifest import PER_TOKEN
from onebert_store.spec import BaseSpec
from onebert_training.data.dataset import Dataset, digest_of, load_dataset
from onebert_training.data.options import DataOptions
from onebert_training.earlier import repeatable
from onebert_training.fit.inputs import TaskInputs
from onebert_training.fit.loop import Report, train_together
from onebert_training.fit.record import make_record
from onebert_training.fit.run import Run
from onebert_training.fit.settings import REVISION, Settings
from onebert_training.methods.methods import parse_method
from onebert_training.methods.rules import HEAD_LEARNING_RATE
from onebert_training.report.records import EVALUATED, PLANNED
from onebert_training.selection.few import make_run, needs_folds, with_folds_measured
from onebert_training.sweep.recipe import RunRequest


@dataclass(frozen=True)
class Job:
    """One run of a sweep; `name` differs for different requests, rows, bases and dtypes."""

    name: str
    request: RunRequest


@dataclass(frozen=True)
class Outcome:
    """The result of a job, or why it failed."""

    name: str
    record: dict[str, Any] | None = None
    delta: bytes | None = None
    error: str | None = None


def name_job(request: RunRequest, dataset: Dataset, spec: BaseSpec, dtype: str) -> Job:
    """Names a request by everything that determines its result, including default rates and the training revision."""
    settings, reading = request.settings, request.reading
    # Not the data's path, reading options or experiment name: only content determines the result.
    used = {"train_rows": reading.train_rows, "validation_share": reading.validation_share}
    identity = {"data": request.data, "settings": asdict(settings), **used}
    rates = [HEAD_LEARNING_RATE, *(term.learning_rate for term in parse_method(settings.method).terms)]
    rows = digest_of(dataset.task_type, dataset.labels, dataset.splits)
    decides = [identity, rates, REVISION, rows, dataset.metric, spec.digest, dtype]
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    rate = "" if settings.learning_rate is None else f"-lr{settings.learning_rate:g}"
    drawn = "" if reading.train_rows is None else f"-n{reading.train_rows}"
    readable = f"{Path(request.data).name}-{settings.method}{drawn}-b{settings.batch_size}{rate}-s{settings.seed}"
    readable = re.sub(r"[^a-z0-9.+]+", "-", readable.lower()).strip("-.+")[:150]
    return Job(f"{readable}-{digest[:12]}", request)


class RunsFolder:
    """A folder of finished runs, `NAME.json` and `NAME.safetensors`, with a subfolder for failed runs."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed = path / "failed"
        self.checkpoints = path / "checkpoints"
        for folder in (path, self.failed, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)

    def record_file(self, name: str) -> Path:
        return self.path / f"{name}.json"

    def delta_file(self, name: str) -> Path:
        return self.path / f"{name}.safetensors"

    def page_file(self, name: str) -> Path:
        return self.path / EVALUATED / f"{name}.html"

    def checkpoint_file(self, name: str) -> Path:
        return self.checkpoints / name

    def error(self, name: str) -> str | None:
        """The error of a failed run, or None; failed runs are not retried."""
        file = self.failed / f"{name}.json"
        return str(json.loads(file.read_text())["error"]) if file.is_file() else None

    def plan(self, recipe: str, names: Sequence[str]) -> None:
        """Writes the names of a recipe's runs, so that `onebert report` can count missing ones."""
        (self.path / PLANNED).mkdir(exist_ok=True)
        write_whole(self.path / PLANNED / f"{recipe}.json", json.dumps(list(names), indent=1).encode())

    def is_pending(self, job: Job) -> bool:
        return not self.record_file(job.name).is_file() and self.error(job.name) is None

    def keep(self, outcome: Outcome) -> None:
        """Writes the result of a job; the record comes last, since it marks the run as finished."""
        if outcome.record is None:
            write_whole(self.failed / f"{outcome.name}.json", json.dumps({"error": outcome.error}).encode())
        else:
            if outcome.delta is not None:
                write_whole(self.delta_file(outcome.name), outcome.delta)
            record = outcome.record | {"out": self.delta_file(outcome.name).name if outcome.delta else None}
            write_whole(self.record_file(outcome.name), json.dumps(record, indent=1, allow_nan=False).encode())
        self.checkpoint_file(outcome.name).unlink(missing_ok=True)


SAMPLE_ROWS = 4


@dataclass(frozen=True)
class JobSet:
    """Jobs on the same rows of the same data, truncated to the same length."""

    dataset: Dataset
    max_length: int
    jobs: tuple[Job, ...]


def make_job_sets(requests: Iterable[RunRequest], spec: BaseSpec, dtype: str) -> list[JobSet]:
    """Loads the data of all requests and names every run. Raises InvalidData with the data set's name."""
    by_rows: dict[tuple[str, DataOptions], dict[int, list[RunRequest]]] = {}
    for request in requests:
        lengths = by_rows.setdefault((request.source, request.reading), {})
        lengths.setdefault(request.settings.max_length, []).append(request)
    job_sets = []
    for (source, reading), lengths in by_rows.items():
        try:
            dataset = load_dataset(source, reading, keep_few=True)
        except InvalidData as error:
            name = next(iter(lengths.values()))[0].data
            raise InvalidData(f"{name}: {error.detail}") from None
        for max_length, group in lengths.items():
            job_sets.append(
                JobSet(dataset, max_length, tuple(name_job(request, dataset, spec, dtype) for request in group))
            )
    return job_sets


def make_runs(base: Base, job_set: JobSet) -> list[Run]:
    """A run for every job of a set, in order; a rejected job raises as `Run` does."""
    return _make_runs(TaskInputs(base, job_set.dataset, job_set.max_length), job_set)


def _make_runs(inputs: TaskInputs, job_set: JobSet) -> list[Run]:
    return [make_run(inputs, job.request.settings, job_set.dataset.name) for job in job_set.jobs]


def check_runs(base: Base, job_set: JobSet) -> None:
    """Rejects jobs early, by their runs on a few rows, and per-token data with all labels truncated away."""
    splits = {
        name: split.take(np.arange(min(SAMPLE_ROWS, len(split)))) for name, split in job_set.dataset.splits.items()
    }
    sample = replace(job_set.dataset, splits=splits)
    try:
        if job_set.dataset.task_type in PER_TOKEN:
            TaskInputs(base, job_set.dataset, job_set.max_length).check_targets()
        _make_runs(TaskInputs(base, sample, job_set.max_length), job_set)
    except OneBertError as error:
        raise type(error)(f"{job_set.dataset.name}: {error.detail}") from None


def _as_trained(settings: Settings, run: Run) -> Settings:
    """The settings by which `onebert train` repeats a sweep's run: a sweep compares neither starts nor poolings."""
    start = settings.start or (None if run.contrastive or run.plan.exact else "fresh")
    return replace(settings, start=start, pooling=run.pooling)


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
        settings = _as_trained(job.request.settings, run)
        result = result.with_provenance({"card": repeatable(settings, job.request.reading).dump()})  # noqa: PLW2901
        delta = dumps(result.delta) if result.delta is not None else None
        size = len(delta) if delta is not None else None
        record = make_record(run, result, size, job.request.reading.train_rows, job.request.experiment)
        yield Outcome(job.name, record, delta)
