"""A blend: one delta whose model has the weighted means of several models' parameters, as tensors of FORMAT.md.

Biases, gains, weights, scales and heads are averaged (a weighted "model soup", Wortsman et al. 2022, section 2).
Adapters have no unit in common, so their outputs are averaged.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import isclose
from typing import Any

import numpy as np

from onebert_store.errors import InvalidInput
from onebert_store.file import delta
from onebert_store.file.delta import Array, Delta
from onebert_store.file.manifest import Manifest, format_for

Sides = Sequence[tuple[Mapping[str, Array], float]]
"""The tensors of several deltas, each with its weight."""

# Manifest fields that must be equal: with other ones there is no parameter to take the mean of.
_ALIKE = ("task_type", "labels", "pooling", "head")


def blend(deltas: Sequence[Delta], weights: Sequence[float]) -> Delta:
    """Makes the blend, without golden logits and reference; decision and max_length are the heaviest delta's.

    Among equally heavy deltas the last one decides. The mean is computed in float64 and stored as float32. `training`
    has the digests and the weights, and the task if all deltas name the same one.

    Args:
        weights: above 0, 1 together within a millionth.

    Raises:
        InvalidInput: the weights break a rule, the deltas differ in base, labels, task type, pooling or head, or their
            adapters have too many units together.
    """
    if len(deltas) < 2:
        raise InvalidInput("a blend is of two deltas or more")
    if min(weights) <= 0 or not isclose(sum(weights), 1, abs_tol=1e-6):
        raise InvalidInput("the weights of a blend are above 0, and 1 together")
    manifests = [part.manifest for part in deltas]
    first = manifests[0]
    kinds = [name for name in _ALIKE if any(getattr(part, name) != getattr(first, name) for part in manifests)]
    kinds += ["base"] if len({part.base.digest for part in manifests}) > 1 else []
    # A head's own layer has no parameter that changes nothing, as a missing bias is zero.
    kinds += ["the layers of their heads"] if len({frozenset(_head(part)) for part in deltas}) > 1 else []
    if kinds:
        raise InvalidInput(f"the deltas of a blend are alike in labels, base and head: these differ in {kinds[0]}")
    total = sum(weights)
    sides = [(part.tensors, weight / total) for part, weight in zip(deltas, weights, strict=True)]
    names = sorted({name for part in deltas for name in part.tensors})
    # One after the other, as float64 takes twice the memory.
    tensors = {name: _stored(name, weighted(name, sides)) for name in names}
    _bound_ranks(tensors)
    heaviest = max(zip(weights, range(len(deltas)), strict=True))[1]
    return Delta(_manifest(manifests[heaviest], _provenance(deltas, weights)), tensors)


def weighted(name: str, sides: Sides) -> Array:
    """The tensor of this name, float64, in the weighted sum of some deltas' changes; at least one of them has it.

    A missing tensor changes nothing. A sum of low-rank products is one product with the factors side by side, as a sum
    of adapters is one adapter.
    """
    prefix = name[: name.index(".") + 1]
    terms = [(tensors[name].astype(np.float64), weight) for tensors, weight in sides if name in tensors]
    if prefix in (delta.LORA_A, delta.ADAPTER_DOWN):
        return np.concatenate([tensor for tensor, _ in terms])
    if prefix == delta.LORA_B or (prefix == delta.ADAPTER_UP and name.endswith(".weight")):
        return np.concatenate([weight * tensor for tensor, weight in terms], axis=1)
    if prefix == delta.SPARSE_INDEX:
        return np.unique(np.concatenate([tensor for tensor, _ in terms]))
    if prefix == delta.SPARSE_VALUE:
        return _sparse(name.removeprefix(prefix), [side for side in sides if name in side[0]])
    if prefix == delta.LORA_XS:
        return _cores(terms)
    start = 1.0 if prefix in (delta.SCALE, delta.OUTPUT_SCALE) else 0.0
    return np.asarray(start + sum(weight * (tensor - start) for tensor, weight in terms))


def _sparse(module: str, sides: Sides) -> Array:
    indices = [tensors[delta.SPARSE_INDEX + module] for tensors, _ in sides]
    places = np.unique(np.concatenate(indices))
    values = np.zeros(len(places))
    for index, (tensors, weight) in zip(indices, sides, strict=True):
        values[np.searchsorted(places, index)] += weight * tensors[delta.SPARSE_VALUE + module].astype(np.float64)
    return values


def _cores(terms: Sequence[tuple[Array, float]]) -> Array:
    """A smaller core's directions are the first directions of a larger one."""
    rank = max(len(core) for core, _ in terms)
    mean = np.zeros((rank, rank))
    for core, weight in terms:
        mean[: len(core), : len(core)] += weight * core
    return mean


def _bound_ranks(tensors: dict[str, Array]) -> None:
    """Multiplies out products over their matrix's rank; raises InvalidInput for an adapter with too many units."""
    for name, tensor in tensors.items():
        if name.startswith(delta.ADAPTER_DOWN) and len(tensor) > tensor.shape[-1]:
            units, limit = tensor.shape
            raise InvalidInput(f"the adapters have {units} units together, and the format allows {limit}: blend fewer")
    for a in [name for name in tensors if name.startswith(delta.LORA_A)]:
        b = delta.LORA_B + a.removeprefix(delta.LORA_A)
        (rank, columns), rows = tensors[a].shape, len(tensors[b])
        if rank > min(rows, columns):
            product = _stored(b, tensors[b].astype(np.float64) @ tensors[a])
            unit = np.eye(min(rows, columns), dtype=np.float32)
            tensors[a], tensors[b] = (unit, product) if columns <= rows else (product, unit)


def _head(part: Delta) -> list[str]:
    return [name for name in part.tensors if name.startswith("head.")]


def _stored(name: str, tensor: Array) -> Array:
    return tensor.astype(np.int32 if name.startswith(delta.SPARSE_INDEX) else np.float32)


def _manifest(heaviest: Manifest, training: Mapping[str, Any]) -> Manifest:
    format_ = format_for(heaviest.decision, heaviest.head)
    changed = {"format": format_, "method": "blend", "training": training, "golden": None, "reference": None}
    return heaviest.model_copy(update=changed)


def _provenance(deltas: Sequence[Delta], weights: Iterable[float]) -> dict[str, Any]:
    parts = [{"digest": part.digest, "weight": weight} for part, weight in zip(deltas, weights, strict=True)]
    task, *other_tasks = (part.manifest.training.get("task") for part in deltas)
    return {"blend": parts} | ({"task": task} if task is not None and all(each == task for each in other_tasks) else {})
