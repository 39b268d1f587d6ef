"""Measures how much a delta changes each parameter and module of its base, from the tensors alone."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import sqrt
from typing import Any, Literal

import numpy as np

from onebert_store.file import delta
from onebert_store.file.blend import weighted
from onebert_store.file.delta import Array

Kind = Literal["added", "low-rank", "sparse", "adapter", "scale", "output-scale", "core"]

# Matches the layer index in a parameter's name, in every family of bases.
LAYER = re.compile(r"(?:^|(?<=\.))layers?\.(\d{1,9})\.")
# Per tensor prefix: the kind of change, and the value that changes nothing.
_NUMBERS: Mapping[str, tuple[Kind, float]] = {
    delta.DELTA: ("added", 0.0),
    delta.SPARSE_VALUE: ("sparse", 0.0),
    delta.SCALE: ("scale", 1.0),
    delta.OUTPUT_SCALE: ("output-scale", 1.0),
    delta.LORA_XS: ("core", 0.0),
}

# Prefixes of tensors that are compared number by number.
_ELEMENTWISE = (delta.DELTA, delta.SCALE, delta.OUTPUT_SCALE, delta.ADAPTER_UP)

_TILE = 1024
_PIECE = _TILE * _TILE

_Float64 = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class Change:
    """The change of one parameter or module.

    Attributes:
        kind: the numbers that are measured. `added`: a vector's difference; `low-rank`: the product BA; `sparse`: the
            values at the changed indices; `adapter`: the weight of its second map; `scale` and `output-scale`: each
            factor's distance from one; `core`: LoRA-XS's matrix between the base's singular directions.
        name: the Hugging Face name of the parameter or module.
        layer: None outside the layers.
        rms: root mean square of the numbers.
        norm: L2 norm of the numbers.
        mean_abs: mean absolute value; None for `low-rank`, because the elements of the product are never computed one
            by one.
    """

    kind: Kind
    name: str
    layer: int | None
    rms: float
    norm: float
    mean_abs: float | None


def changes(tensors: Mapping[str, Array]) -> list[Change]:
    """Measures every change, in the order of the tensors, by tiles; skips tensors such as a head that are no change."""
    return [change for name in tensors if (change := _change(tensors, name))]


def difference(new: Mapping[str, Array], old: Mapping[str, Array]) -> dict[str, Array]:
    """Returns tensors whose `changes` lead from `old` to `new`, two deltas for the same base.

    The difference of two low-rank products is one product with the factors side by side. Adapters have no difference of
    weights; the result compares their second maps unit by unit if they have equally many units.
    """
    tensors: dict[str, Array] = {}
    sides = ((new, 1.0), (old, -1.0))
    for name in sorted(new.keys() | old.keys()):
        prefix = name[: name.find(".") + 1]
        terms = [sign * side[name].astype(np.float64) for side, sign in sides if name in side]
        if prefix in _ELEMENTWISE and len({tensor.shape for tensor in terms}) > 1:
            tensors[name] = np.concatenate([tensor.reshape(-1) for tensor in terms])
        elif prefix == delta.ADAPTER_UP:
            tensors[name] = np.asarray(sum(terms))
        elif prefix in (*_NUMBERS, delta.LORA_A, delta.LORA_B):
            tensors[name] = weighted(name, sides)
    return tensors


def _change(tensors: Mapping[str, Array], name: str) -> Change | None:
    prefix, dot, rest = name.partition(".")
    prefix, tensor = prefix + dot, tensors[name]
    if prefix in _NUMBERS:
        return _of_numbers(*_NUMBERS[prefix], rest, tensor)
    if prefix == delta.ADAPTER_UP and rest.endswith(".weight"):
        return _of_numbers("adapter", 0.0, rest.removesuffix(".weight"), tensor)
    b = tensors.get(delta.LORA_B + rest) if prefix == delta.LORA_A else None
    if b is not None and b.ndim == tensor.ndim == 2 and b.shape[1] == tensor.shape[0]:
        norm = _norm_of_product(b, tensor)
        return Change("low-rank", rest, _layer(rest), norm / sqrt(b.shape[0] * tensor.shape[1]), norm, None)
    return None


def _of_numbers(kind: Kind, start: float, name: str, tensor: Array) -> Change:
    flat, total, squares = tensor.reshape(-1), 0.0, 0.0
    for at in range(0, flat.size, _PIECE):
        numbers = flat[at : at + _PIECE].astype(np.float64) - start
        total += float(np.abs(numbers).sum())
        squares += float(np.square(numbers).sum())
    return Change(kind, name, _layer(name), sqrt(squares / flat.size), sqrt(squares), total / flat.size)


def _norm_of_product(b: Array, a: Array) -> float:
    """Returns the norm of BA [out, in]; computes BA or its Gram matrices, whichever is smaller, tile by tile."""
    (out, r), columns = b.shape, a.shape[1]
    if r * r <= out * columns:
        # ‖BA‖² is the sum over all elements of BᵀB ⊙ AAᵀ, both [r, r], so the product itself is not needed.
        pairs = zip(_tiles_of_product(b.T, b), _tiles_of_product(a, a.T), strict=True)
        squares = sum(float((btb * aat).sum()) for btb, aat in pairs)
    else:
        squares = sum(float(np.square(tile).sum()) for tile in _tiles_of_product(b, a))
    # Rounding can make a zero sum negative.
    return sqrt(max(squares, 0.0))


def _tiles_of_product(x: Array, y: Array) -> Iterator[_Float64]:
    for i in range(0, x.shape[0], _TILE):
        for j in range(0, y.shape[1], _TILE):
            tile = np.zeros((min(_TILE, x.shape[0] - i), min(_TILE, y.shape[1] - j)))
            for k in range(0, x.shape[1], _TILE):
                rows, columns = x[i : i + _TILE, k : k + _TILE], y[k : k + _TILE, j : j + _TILE]
                tile += rows.astype(np.float64) @ columns.astype(np.float64)
            yield tile


def _layer(name: str) -> int | None:
    match = LAYER.search(name)
    return int(match[1]) if match else None
