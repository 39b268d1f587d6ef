"""Reads and validates records of runs, as `onebert train --json` and `onebert sweep` write them."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from onebert_store.errors import InvalidInput
from onebert_training.tasks.metrics import JackknifeScore

PLANNED = "planned"
"""Folder in a sweep's `--out`; its RECIPE.json files list the names of a recipe's runs."""
EVALUATED = "evaluated"
"""Folder in a sweep's `--out`; its RUN.html files are evaluation pages of the best deltas."""
MAX_BYTES = 64 * 2**20

Text = Annotated[str, Field(min_length=1, max_length=500)]
Count = Annotated[int, Field(ge=0)]
Metrics = Mapping[str, float]
_NAMES = TypeAdapter(list[str])


class _Lenient(BaseModel):
    """Ignores unknown keys, since newer versions may write more."""

    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class Data(_Lenient):
    """The data set of a run."""

    name: Text
    digest: str = ""


class Evaluation(_Lenient):
    """One evaluation; `loss` is the mean training loss since the previous one."""

    step: Count
    epoch: float
    loss: float | None = None
    validation: Metrics = {}
    validation_loss: float | None = None


class Change(_Lenient):
    """Mean absolute difference of one trained vector; `layer` is None outside the layers."""

    symbol: Text
    layer: Count | None = None
    mean_abs: float


class Record(_Lenient):
    """One finished run; a figure for which a record has no data is not drawn."""

    task: Text
    base: Text
    method: Text
    metric: Text
    validation: Metrics
    test: Metrics | None = None
    train: Metrics | None = None
    rows: Mapping[str, Count] = {}
    delta_parameters: Count
    head_parameters: Count = 0
    percent: float
    learning_rate: float | None
    head_learning_rate: float | None = None
    strength: float | None = None
    seed: int
    file_bytes: Count | None = None
    seconds: float | None = None
    dtype: str = "float32"
    revision: Count = 1
    settings: Mapping[str, str | int | float | bool | None] = {}
    data: Data | None = None
    best_step: Count | None = None
    blocks: tuple[float, ...] = ()
    folds: Count = 0
    history: tuple[Evaluation, ...] = ()
    change: tuple[Change, ...] = ()
    experiment: str | None = None
    out: str | None = None

    @property
    def data_name(self) -> str:
        return self.data.name if self.data else self.task

    @property
    def split(self) -> str:
        return "test" if self.test is not None else "validation"

    @property
    def deciding_score(self) -> float:
        """The deciding metric on the validation split."""
        return self.validation[self.metric]

    @property
    def jackknife(self) -> JackknifeScore:
        """The validation score with its jackknife blocks, for standard errors."""
        return JackknifeScore(self.metric, self.deciding_score, self.blocks)

    @property
    def score(self) -> float:
        """The deciding metric on `split`."""
        return (self.validation if self.test is None else self.test)[self.metric]


def record_files(paths: Iterable[Path]) -> list[Path]:
    """The records' files: `.json` paths, and all `.json` files of folders; raises InvalidInput for an empty folder."""
    files: list[Path] = []
    for path in paths:
        records = sorted(path.glob("*.json")) if path.is_dir() else [path]
        if not records:
            raise InvalidInput(f"{path.name} holds no record (.json)")
        files += records
    return list(dict.fromkeys(files))


def load_records(paths: Iterable[Path]) -> list[Record]:
    """Reads records, in order of file name within a folder; raises InvalidInput for a file that is not a record."""
    return [_read(path) for path in record_files(paths)]


def missing(paths: Iterable[Path]) -> list[str]:
    """A sentence per recipe with missing runs. Raises InvalidInput if a plan file is malformed."""
    sentences = []
    for path in paths:
        for file in sorted((path / PLANNED).glob("*.json")):
            try:
                names = _NAMES.validate_json(file.read_bytes())
            except (OSError, ValidationError):
                raise InvalidInput(f"{PLANNED}/{file.name} is not a list of runs; `onebert sweep` writes it") from None
            lacking = sum(not (path / f"{name}.json").is_file() for name in names)
            if lacking:
                is_are = "is" if lacking == 1 else "are"
                sentences.append(f"{lacking} of the {len(names)} runs of {file.stem} {is_are} missing")
    return sentences


def delta_of(record: Record, file: Path) -> Path | None:
    """The run's delta file beside its record, if it exists."""
    name = Path(record.out or "").name
    return delta if name and (delta := file.with_name(name)).is_file() else None


def page_of(record: Record, paths: Iterable[Path]) -> Path | None:
    """The sweep's page for a run's delta, if it exists."""
    name = Path(record.out).stem if record.out else ""
    pages = [path / EVALUATED / f"{name}.html" for path in paths]
    return next((page for page in pages if name and page.is_file()), None)


def _read(path: Path) -> Record:
    try:
        if path.stat().st_size > MAX_BYTES:
            raise InvalidInput(f"{path.name} is over {MAX_BYTES >> 20} MiB, too large for a record")
        content = path.read_bytes()
    except OSError as error:
        raise InvalidInput(f"{path.name} cannot be read: {error.strerror}") from None
    try:
        record = Record.model_validate_json(content)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidInput(
            f"{path.name} is not the record of a run: {where + ': ' if where else ''}{first['msg']}"
        ) from None
    for name in ("validation", "test", "train"):
        if (scores := getattr(record, name)) is not None and record.metric not in scores:
            raise InvalidInput(f"{path.name} is not the record of a run: {name} lacks its metric, {record.metric}")
    return record
