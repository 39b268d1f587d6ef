"""Chooses how a fine-tuned checkpoint becomes a delta: by low rank, or else by learning its answers."""

from pathlib import Path
from typing import Any

from onebert_encoder.base.base import Base
from onebert_store.errors import InvalidInput
from onebert_store.file.delta import Delta
from onebert_training.fit.loop import Report
from onebert_training.interop.checkpoint.by_rank import import_by_rank
from onebert_training.interop.checkpoint.distilling import import_by_distillation
from onebert_training.interop.checkpoint.finetuned import OutOfReach
from onebert_training.interop.checkpoint.options import CheckpointOptions
from onebert_training.interop.heads import TaskOptions


def import_checkpoint(
    folder: Path,
    name: str,
    base: Base,
    options: CheckpointOptions,
    task_options: TaskOptions,
    out: Path,
    report: Report,
) -> tuple[Delta, dict[str, Any]]:
    """The delta with golden logits, and its agreement with the checkpoint as JSON.

    Args:
        name: of the checkpoint, for the manifest.
        base: must compute in float32.
        options: texts to compare on and to learn on, and the required agreement.
        task_options: the longest input is else the limit of the checkpoint's tokenizer, or else of the base.
        out: checkpoints of a training lie beside this file.
        report: called after every step of a training.

    Raises:
        OneBertError: see `import_by_rank` and `import_by_distillation`.
    """
    try:
        return import_by_rank(folder, name, base, options, task_options)
    except OutOfReach as missed:
        if options.distil is None:
            raise InvalidInput(f"{missed.detail}; --distil TEXTS trains a delta that learns its answers") from None
        return import_by_distillation(folder, name, base, options, task_options, missed.detail, out, report)
