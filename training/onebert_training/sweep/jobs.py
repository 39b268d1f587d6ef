"""The runs of a recipe as jobs with names, and the folder that keeps what came of them."""

import hashlib
import json
import re
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from onebert_store.disk import write_whole
from onebert_store.spec import BaseSpec
from onebert_training.data.dataset import Dataset
from onebert_training.sweep.recipe import RunRequest


@dataclass(frozen=True)
class Job:
    """One run of a sweep.

    Attributes:
        name: of its files; it tells what is asked, on which rows, base and dtype, and nothing else has it.
        request: what the recipe asks.
    """

    name: str
    request: RunRequest


@dataclass(frozen=True)
class Outcome:
    """What came of a job: a record and, where there can be one, a delta file; or the reason why there is none.

    Attributes:
        lost: the reason is not the run's own, so another attempt may end otherwise.
    """

    name: str
    record: dict[str, Any] | None = None
    delta: bytes | None = None
    error: str | None = None
    lost: bool = False


def name_job(request: RunRequest, dataset: Dataset, spec: BaseSpec, dtype: str) -> Job:
    """Names a request by everything that decides what comes of it."""
    settings, reading = request.settings, request.reading
    # Neither path and reading of the data nor the experiment's name change the run; what the data holds does.
    asked = {
        **{"data": request.data, "settings": asdict(settings)},
        **{"train_rows": reading.train_rows, "validation_share": reading.validation_share},
    }
    decides = [asked, dataset.digest, dataset.metric, spec.digest, dtype]
    digest = hashlib.sha256(json.dumps(decides, sort_keys=True).encode()).hexdigest()
    rate = "" if settings.learning_rate is None else f"-lr{settings.learning_rate:g}"
    rows = "" if reading.train_rows is None else f"-n{reading.train_rows}"
    readable = f"{Path(request.data).name}-{settings.method}{rows}-b{settings.batch_size}{rate}-s{settings.seed}"
    readable = re.sub(r"[^a-z0-9.+]+", "-", readable.lower()).strip("-.+")[:150]
    return Job(f"{readable}-{digest[:12]}", request)


class RunsFolder:
    """A folder of finished runs: `NAME.json`, beside it `NAME.safetensors`; and runs that failed, apart."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.failed = path / "failed"
        self.checkpoints = path / "checkpoints"
        for folder in (path, self.failed, self.checkpoints):
            folder.mkdir(parents=True, exist_ok=True)

    def record_file(self, name: str) -> Path:
        """Where the record of a finished run is."""
        return self.path / f"{name}.json"

    def delta_file(self, name: str) -> Path:
        """Where the delta of a finished run is."""
        return self.path / f"{name}.safetensors"

    def checkpoint_file(self, name: str) -> Path:
        """Where a run that was interrupted goes on from."""
        return self.checkpoints / name

    def error(self, name: str) -> str | None:
        """Why a run failed, if it did; it would again."""
        file = self.failed / f"{name}.json"
        return str(json.loads(file.read_text())["error"]) if file.is_file() else None

    def is_pending(self, job: Job) -> bool:
        """Whether nothing came of the job yet."""
        return not self.record_file(job.name).is_file() and self.error(job.name) is None

    def keep(self, outcome: Outcome) -> None:
        """Writes what came of a job, its record last: with a record, a run is finished.

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
