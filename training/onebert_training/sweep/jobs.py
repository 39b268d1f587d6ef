"""Jobs, the named runs of a recipe, and the folder that keeps their results."""

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onebert_store.disk import write_whole
from onebert_store.spec import BaseSpec
from onebert_training.data.dataset import Dataset
from onebert_training.fit.settings import REVISION
from onebert_training.methods.methods import parse_method
from onebert_training.methods.rules import HEAD_LEARNING_RATE
from onebert_training.report.records import EVALUATED, PLANNED
from onebert_training.sweep.recipe import RunRequest


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    Attributes:
        name: name of the job's files; different for different requests, rows, bases and dtypes.
        request: the run that the recipe asks for.
    """

    name: str
    request: RunRequest


@dataclass(frozen=True)
class Outcome:
    """The result of a job: a record and, if the method gives one, a delta file; or an error.

    Attributes:
        lost: whether the error is not the run's own, such as a dead worker, so that another attempt may succeed.
    """

    name: str
    record: dict[str, Any] | None = None
    delta: bytes | None = None
    error: str | None = None
    lost: bool = False


def name_job(request: RunRequest, dataset: Dataset, spec: BaseSpec, dtype: str) -> Job:
    """Names a request by everything that its result depends on, default rates and the way that steps are taken too.

    Raises:
        InvalidMethod: see `parse_method`.
    """
    settings, reading = request.settings, request.reading
    # The result depends on the data's content, not on its path or how it was read, nor on the experiment's name.
    used = {"train_rows": reading.train_rows, "validation_share": reading.validation_share}
    asked = {"data": request.data, "settings": asdict(settings), **used}
    rates = [HEAD_LEARNING_RATE, *(term.learning_rate for term in parse_method(settings.method).terms)]
    decides = [asked, rates, REVISION, dataset.digest, dataset.metric, spec.digest, dtype]
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    rate = "" if settings.learning_rate is None else f"-lr{settings.learning_rate:g}"
    rows = "" if reading.train_rows is None else f"-n{reading.train_rows}"
    readable = f"{Path(request.data).name}-{settings.method}{rows}-b{settings.batch_size}{rate}-s{settings.seed}"
    readable = re.sub(r"[^a-z0-9.+]+", "-", readable.lower()).strip("-.+")[:150]
    return Job(f"{readable}-{digest[:12]}", request)


class RunsFolder:
    """A folder of finished runs, `NAME.json` and `NAME.safetensors`; failed runs have a folder of their own in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed = path / "failed"
        self.checkpoints = path / "checkpoints"
        for folder in (path, self.failed, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)

    def record_file(self, name: str) -> Path:
        """The record file of a finished run."""
        return self.path / f"{name}.json"

    def delta_file(self, name: str) -> Path:
        """The delta file of a finished run."""
        return self.path / f"{name}.safetensors"

    def page_file(self, name: str) -> Path:
        """The page of what rows say of a run's delta."""
        return self.path / EVALUATED / f"{name}.html"

    def checkpoint_file(self, name: str) -> Path:
        """The checkpoint file of a run."""
        return self.checkpoints / name

    def error(self, name: str) -> str | None:
        """Why a run failed; None if it did not. A failed run is not tried again."""
        file = self.failed / f"{name}.json"
        return str(json.loads(file.read_text())["error"]) if file.is_file() else None

    def plan(self, recipe: str, names: Sequence[str]) -> None:
        """Writes which runs a recipe asks for, so that `onebert report` can say how many are missing.

        Raises:
            StorageFull: the disk refused the write.
        """
        (self.path / PLANNED).mkdir(exist_ok=True)
        write_whole(self.path / PLANNED / f"{recipe}.json", json.dumps(list(names), indent=1).encode())

    def is_pending(self, job: Job) -> bool:
        """Whether the job has neither finished nor failed."""
        return not self.record_file(job.name).is_file() and self.error(job.name) is None

    def keep(self, outcome: Outcome) -> None:
        """Writes the result of a job; the record is written last, since it marks a run as finished.

        Raises:
            StorageFull: the disk refused a write; the run counts as not finished.
        """
        if outcome.lost:
            return
        if outcome.record is None:
            write_whole(self.failed / f"{outcome.name}.json", json.dumps({"error": outcome.error}).encode())
        else:
            if outcome.delta is not None:
                write_whole(self.delta_file(outcome.name), outcome.delta)
            record = outcome.record | {"out": self.delta_file(outcome.name).name if outcome.delta else None}
            write_whole(self.record_file(outcome.name), json.dumps(record, indent=1, allow_nan=False).encode())
        self.checkpoint_file(outcome.name).unlink(missing_ok=True)
