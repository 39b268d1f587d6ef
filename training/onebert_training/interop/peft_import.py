"""Converts a PEFT adapter folder to a delta that gives the same answers, or refuses it by naming what does not fit."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_store.errors import InvalidInput, TensorMismatch
from onebert_store.file.delta import (
    HEAD_BIAS,
    Delta,
)
from onebert_store.file.manifest import TaskType
from onebert_store.file.strict_json import shown
from onebert_training.interop.heads import PEFT_TASKS, Kind, kind_of, label_names, layout_of, task_type_of
from onebert_training.interop.made import with_golden
from onebert_training.interop.peft_conversion import convert, made_for
from onebert_training.interop.peft_folder import Adapter, read_adapter


def import_adapter(
    folder: Path,
    base: Base,
    labels: list[str] | None = None,
    task_type: TaskType | None = None,
    max_length: int | None = None,
) -> Delta:
    """Reads a PEFT adapter as a delta for `base`; nothing that the folder names is opened or fetched.

    Args:
        folder: a folder with adapter_config.json and adapter_model.safetensors.
        base: a base that computes in float32.
        labels: names of the outputs; None takes those of the folder's model configuration, or `LABEL_0`, …
        task_type: None reads it from the folder: a problem type, the adapter's task, or the number of outputs.
        max_length: longest input in tokens; None is the base's own.

    Raises:
        InvalidInput: the folder cannot be read, or holds something that a delta cannot.
        MalformedFile: one of its files is damaged.
        TensorMismatch: the tensors do not fit this base.
        InvalidManifest: labels, a task type or a length that a manifest cannot hold.
        NotFinite: a tensor or an answer contains NaN or infinity.
    """
    adapter = read_adapter(folder, base.anatomy.family.prefix)
    kind = _kind(adapter, task_type)
    tensors, pooling = convert(adapter, base, layout_of(base.spec.model_type, kind))
    count = len(tensors[HEAD_BIAS])
    names = labels or label_names(adapter.model_config, kind, count)
    if len(names) != count:
        raise InvalidInput(f"{len(names)} labels for a classifier of {count} outputs")
    spec, peft_type = base.spec, str(adapter.config["peft_type"])
    manifest = {
        "format": 1,
        "base": {"name": spec.name, "model_type": spec.model_type, "digest": spec.digest},
        "task_type": task_type or task_type_of(adapter.model_config, kind, count),
        "labels": names,
        "pooling": pooling,
        "max_length": spec.max_length if max_length is None else max_length,
        "method": f"peft:{peft_type.lower()}",
        "training": {"imported_from": "peft", "peft_version": str(adapter.config.get("peft_version", ""))},
    }
    return _made(base, tensors, manifest, adapter)


def _made(base: Base, tensors: Mapping[str, Tensor], manifest: dict[str, Any], adapter: Adapter) -> Delta:
    arrays = {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}
    try:
        return with_golden(base, arrays, manifest)
    except TensorMismatch as error:
        raise TensorMismatch(f"{error.detail}{made_for(adapter)}") from None


def _kind(adapter: Adapter, task_type: TaskType | None) -> Kind:
    said = adapter.config.get("task_type")
    if said is None:
        return kind_of(task_type or "single_label")
    if not isinstance(said, str) or said not in PEFT_TASKS:
        raise InvalidInput(f"a delta cannot hold a {shown(str(said))} task; it holds {', '.join(PEFT_TASKS)}")
    if task_type is not None and kind_of(task_type) != PEFT_TASKS[said]:
        raise InvalidInput(f"the adapter is for {said}, which is no {task_type} task")
    return PEFT_TASKS[said]
