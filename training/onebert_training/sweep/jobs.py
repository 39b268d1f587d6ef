"""Jobs (the named runs of a recipe), and the folder that keeps their results."""

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
    """One run of a sweep; `name` differs for different requests, rows, bases and dtypes."""

    name: str
    request: RunRequest


@dataclass(frozen=True)
class Outcome:
    """The result of a job; with `lost` the error is not the run's own (a worker died), so a retry may succeed."""

    name: str
    record: dict[str, Any] | None = None
    delta: bytes | None = None
    error: str | None = None
    lost: bool = False


def name_job(request: RunRequest, dataset: Dataset, spec: BaseSpec, dtype: str) -> Job:
    """Names a request by everything that determines its result, including default rates and the training revision."""
    settings, reading = request.settings, request.reading
    # Not the data's path, reading options or experiment name: only content determines the result.
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
