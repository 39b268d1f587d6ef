"""Converts a PEFT adapter folder to a delta that gives the same answers, or refuses it by naming what does not fit."""

from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.predict import compute_golden
from onebert_store.errors import InvalidInput, NotFinite, TensorMismatch
from onebert_store.file.delta import (
    HEAD_BIAS,
    Delta,
    check,
)
from onebert_store.file.manifest import TaskType, parse_manifest
from onebert_store.file.strict_json import shown
from onebert_training.interop.heads import PEFT_TASKS, PROBLEMS, Kind, kind_of, layout_of
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
    names = labels or _labels(adapter, kind, count)
    if len(names) != count:
        raise InvalidInput(f"{len(names)} labels for a classifier of {count} outputs")
    spec, peft_type = base.spec, str(adapter.config["peft_type"])
    manifest = {
        "format": 1,
        "base": {"name": spec.name, "model_type": spec.model_type, "digest": spec.digest},
        "task_type": task_type or _task_type(adapter, kind, count),
        "labels": names,
        "pooling": pooling,
        "max_length": spec.max_length if max_length is None else max_length,
        "method": f"peft:{peft_type.lower()}",
        "training": {"imported_from": "peft", "peft_version": str(adapter.config.get("peft_version", ""))},
    }
    return _with_golden(base, tensors, manifest, adapter)


def _with_golden(base: Base, tensors: dict[str, Tensor], manifest: dict[str, Any], adapter: Adapter) -> Delta:
    """The delta, checked, with golden logits computed on this base."""
    arrays = {name: tensor.contiguous().numpy() for name, tensor in tensors.items()}
    plain = parse_manifest(manifest)
    try:
        check(Delta(plain, arrays), base.spec)
    except TensorMismatch as error:
        raise TensorMismatch(f"{error.detail}{made_for(adapter)}") from None
    with torch.no_grad():
        row = fold(base, tensors, plain.pooling)
        try:
            golden = compute_golden(base, row, plain.max_length)
        except ValidationError:
            raise NotFinite("the answers of the imported task are not numbers") from None
    return Delta(parse_manifest({**plain.model_dump(), "golden": golden.model_dump()}), arrays)


def _kind(adapter: Adapter, task_type: TaskType | None) -> Kind:
    said = adapter.config.get("task_type")
    if said is None:
        return kind_of(task_type or "single_label")
    if not isinstance(said, str) or said not in PEFT_TASKS:
        raise InvalidInput(f"a delta cannot hold a {shown(str(said))} task; it holds {', '.join(PEFT_TASKS)}")
    if task_type is not None and kind_of(task_type) != PEFT_TASKS[said]:
        raise InvalidInput(f"the adapter is for {said}, which is no {task_type} task")
    return PEFT_TASKS[said]


def _task_type(adapter: Adapter, kind: Kind, count: int) -> str:
    if kind != "sequence":
        return kind
    problem = adapter.model_config.get("problem_type")
    of_problem = {theirs: ours for ours, theirs in PROBLEMS.items()}
    return of_problem.get(str(problem)) or ("regression" if count == 1 else "single_label")


def _labels(adapter: Adapter, kind: Kind, count: int) -> list[str]:
    if kind == "span":
        return ["start", "end"]
    names = adapter.model_config.get("id2label")
    if not isinstance(names, dict):
        return [f"LABEL_{i}" for i in range(count)]
    if set(names) != {str(i) for i in range(count)}:
        raise InvalidInput(
            f"id2label of the folder's configuration does not name the classifier's {count} outputs; give the labels"
        )
    return [str(names[str(i)]) for i in range(count)]
