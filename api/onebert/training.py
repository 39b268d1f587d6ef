"""Trains a delta from data in Python, like the command `onebert train` (`onebert.train`)."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from typing_extensions import Unpack

from onebert.options import TrainOptions
from onebert.tables import source_of
from onebert_encoder.base.base import Base
from onebert_store.errors import InvalidSettings
from onebert_store.suggestion import suggestion
from onebert_store.tables.label_studio import plain_source
from onebert_training.commands.showing import train_with_progress
from onebert_training.data.options import DataOptions
from onebert_training.earlier import FIELDS, settings_from
from onebert_training.fit.loop import Progress
from onebert_training.fit.settings import Settings
from onebert_training.prepared import prepare
from onebert_training.selection.selection import train_and_select


@dataclass(frozen=True)
class Trained:
    """The result of a training.

    Attributes:
        file: the delta file; for a method that changes the base's weights, the folder of a checkpoint.
        metric: name of the metric that selected the kept evaluation.
        validation: every metric on the validation split, or over folds if few rows were all trained on.
        test: every metric on the test split; None without one.
        notes: doubts about the data and the settings, one sentence each.
        warnings: doubts about the result, one sentence each.
        record: everything else that `onebert train --json` prints.
    """

    file: Path
    metric: str
    validation: Mapping[str, float]
    test: Mapping[str, float] | None
    notes: tuple[str, ...]
    warnings: tuple[str, ...]
    record: Mapping[str, Any] = field(repr=False)


def train(
    data: Any,
    *,
    task: str,
    out: str | Path | None = None,
    base: str | Base | None = None,
    dtype: str = "float32",
    device: str | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    progress: bool = False,
    **options: Unpack[TrainOptions],
) -> Trained:
    """Trains a delta and writes its file; the same call continues an interrupted training.

    Args:
        data: a value of `--data`, or a table: a DataFrame, a mapping of columns, a list of mappings or of (text, label)
            pairs; or a mapping of `train`, `validation` and `test` to such tables.
        out: the file to write; None is `TASK.safetensors`.
        base: Hub id or folder, or a base in memory, such as `Classifier.base`, which computes in its own dtype and on
            its own device; None is the default base.
        dtype: `float32` or `bfloat16`, for the forward pass; the delta file has the same types with both.
        device: `cpu`, `cuda` or `cuda:N`; None is a GPU if there is one.
        on_progress: called after every step.
        progress: shows steps and scores on standard error, as the command does.
        options: every other option of the command by its name: `method`, `epochs`, `learning_rate`, …

    Raises:
        InvalidSettings: an option does not exist, or has an invalid value.
        OneBertError: the data, the base or the method is refused, or the training failed.
    """
    settings, reading = _checked(options)
    source = source_of(data)
    source = source if isinstance(source, str) else plain_source(source, reading.columns)
    job = prepare(task, source, reading, settings, base, dtype, device, None if out is None else Path(out))
    if progress:
        selection = train_with_progress(job.run, job.checkpoint, on_progress)
    else:
        listen = on_progress or (lambda _: None)
        selection = train_and_select(job.run, lambda _, step: listen(step), job.checkpoint)
    record, notes = job.finish(selection)
    result = selection.result
    return Trained(
        file=job.out,
        metric=result.metric,
        validation=dict(result.validation),
        test=None if result.test is None else dict(result.test),
        notes=(*record["notes"], *notes),
        warnings=tuple(record["warnings"]),
        record=record,
    )


def _checked(options: Mapping[str, Any]) -> tuple[Settings, DataOptions]:
    for name in sorted(options.keys() - FIELDS):
        raise InvalidSettings(f"train() has no option {name}{suggestion(name, FIELDS)}")
    return settings_from(options)
