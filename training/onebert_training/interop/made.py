"""Completes an imported delta: checks it against its base and computes golden logits."""

from collections.abc import Mapping
from typing import Any

from onebert_encoder.base.base import Base
from onebert_store.file.canonical import Array
from onebert_store.file.delta import Delta, check
from onebert_store.file.manifest import parse_manifest
from onebert_training.fit.result import with_golden
from onebert_training.interop.heads import Outputs


def manifest_of(
    base: Base, outputs: Outputs, pooling: str, max_length: int, method: str, facts: Mapping[str, Any]
) -> dict[str, Any]:
    """A manifest without golden logits; `outputs` are from `outputs_of`, `facts` record the origin."""
    (task_type, labels, warnings), spec = outputs, base.spec
    return {
        "format": 1,
        "base": {"name": spec.name, "model_type": spec.model_type, "digest": spec.digest},
        "task_type": task_type,
        "labels": labels,
        "pooling": pooling,
        "max_length": max_length,
        "method": method,
        "training": {**facts, "warnings": warnings},
    }


def checked_delta(base: Base, tensors: Mapping[str, Array], manifest: Mapping[str, Any]) -> Delta:
    """The imported delta with golden logits; the base must compute in float32.

    Raises:
        InvalidManifest: labels, task type or length do not fit a manifest.
        TensorMismatch: the tensors do not fit this base.
        NotFinite: a tensor or an answer contains NaN or infinity.
    """
    plain = Delta(parse_manifest(manifest), tensors)
    check(plain, base.spec)
    return with_golden(base, plain, {}, "the answers of the imported task are not numbers")
