"""Rows: folded tasks, one by one from `fold`, or stacked for `encode` to gather from."""

from array import array
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import IntEnum
from functools import cached_property
from itertools import chain
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.compute.scores import RowScores
from onebert_encoder.layout.branches import Branches, BranchesOf
from onebert_encoder.layout.upload import Array
from onebert_store.file.manifest import SIAMESE, Activation

# The poolings and activations, as heads.h numbers them, which does not read siamese heads.
POOLED = {"cls": 0, "pooler": 0, "mean": 1, "none": 2, SIAMESE: 3}
ACTIVATED: Mapping[Activation, int] = {"tanh": 0, "gelu": 1, "relu": 2}


class Number(IntEnum):
    """The columns of `Rows.numbers`; from WEIGHT to LAYERS as heads.h reads them, 0 in a row without a head.

    A head's addresses of `weight` and `bias`, its number of labels, its pooling, the address of its layers' list and
    how many they are; whether the compiled code computes it, and whether it can be read by its addresses. Whether the
    row has branches; its entry in `gain` and `g_LN0`; and its entries in the tables of `scales`, one column for each
    place of the base.
    """

    WEIGHT = 0
    BIAS = 1
    LABELS = 2
    POOLED = 3
    LIST = 4
    LAYERS = 5
    NATIVE = 6
    CONTIGUOUS = 7
    BRANCHES = 8
    GAIN = 9
    SCALES = 10


class Dense(NamedTuple):
    """A layer of a head: W [h, h], b [h], an activation, and the gain [h] of a LayerNorm behind it, if there is one."""

    weight: Tensor
    bias: Tensor
    activation: Activation = "tanh"
    norm: Tensor | None = None

    @property
    def tensors(self) -> tuple[Tensor, ...]:
        return (self.weight, self.bias) if self.norm is None else (self.weight, self.bias, self.norm)

    @property
    def native(self) -> tuple[int, ...]:
        norm = 0 if self.norm is None else self.norm.data_ptr()
        return self.weight.data_ptr(), self.bias.data_ptr(), norm, ACTIVATED[self.activation]


@dataclass(frozen=True)
class Head:
    """The classifier of the encoder's last layer: zero or more layers on the pooled vector, then a linear map.

    Attributes:
        pooling: `mean` reads the mean over tokens, `none` every token by itself, `cls` and `pooler` the first token,
            `siamese` the means of both texts of a pair.
        dense: the layers; the first may be the base's pooler.
        weight: [labels, h], float32; [labels, 4h + 1] for siamese.
        shift: [h], float32, the bias of the last LayerNorm for siamese; None for others, whose first bias includes it.
        gain: [h], float32, the gain of a final LayerNorm for siamese; None for others, whose first map includes it.
    """

    pooling: str
    dense: tuple[Dense, ...]
    weight: Tensor
    bias: Tensor
    shift: Tensor | None = None
    gain: Tensor | None = None

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """The columns of `Rows.numbers` up to CONTIGUOUS."""
        tensors = (self.weight, self.bias, *chain.from_iterable(layer.tensors for layer in self.dense))
        contiguous = self.weight.is_contiguous() and self.bias.is_contiguous()
        # A layer on every token is a matrix product, which the call would compute vector by vector.
        native = self.pooling != SIAMESE and not (self.pooling == "none" and self.dense)
        native &= all(tensor.is_contiguous() and tensor.dtype == torch.float32 for tensor in tensors)
        addresses = array("q", list(chain.from_iterable(layer.native for layer in self.dense)))
        # If several threads get here at once, the first one's list is kept, and C++ must read that one.
        dense = self.__dict__.setdefault("_dense_addresses", addresses).buffer_info()[0]
        labels, pooled = self.bias.shape[0], POOLED[self.pooling]
        read = self.weight.data_ptr(), self.bias.data_ptr(), labels, pooled, dense, len(self.dense)
        return *read, int(native), int(contiguous)

    @property
    def nbytes(self) -> int:
        """Bytes of the head's own tensors; the layers' matrices may be the base's and do not count."""
        return sum(tensor.nbytes for tensor in (self.weight, self.bias, self.shift, self.gain) if tensor is not None)

    def copied(self) -> "Head":
        """A copy in memory of its own, except the layers' matrices, which may be the base's."""
        dense = tuple(layer._replace(bias=layer.bias.clone(), norm=_clone(layer.norm)) for layer in self.dense)
        weight, bias = self.weight.clone(), self.bias.clone()
        shift, gain = _clone(self.shift), _clone(self.gain)
        return replace(self, dense=dense, weight=weight, bias=bias, shift=shift, gain=gain)


@dataclass(frozen=True)
class Heads:
    """The heads of some sequences: all rows' heads, and each sequence's row and `Rows.numbers`."""

    of_rows: Sequence[Head | None]
    rows: Array
    numbers: Array

    @classmethod
    def of(cls, rows: "Rows", of_sequences: Array) -> "Heads":
        """The heads of sequences with these rows; ValueError for a row without one."""
        numbers = rows.numbers[of_sequences]
        if not numbers[:, Number.LABELS].all():
            raise ValueError("the bare base has no head to answer with")
        return cls(rows.heads, of_sequences, numbers)

    def __getitem__(self, sequences: Array) -> "Heads":
        return Heads(self.of_rows, self.rows[sequences], self.numbers[sequences])

    def __iter__(self) -> Iterator[Head]:
        return (head for row in self.rows.tolist() if (head := self.of_rows[row]) is not None)

    @property
    def labels(self) -> Array:
        return self.numbers[:, Number.LABELS]

    @property
    def pooled(self) -> Array:
        """[sequences], numbers of `POOLED`."""
        return self.numbers[:, Number.POOLED]


def _clone(tensor: Tensor | None) -> Tensor | None:
    return None if tensor is None else tensor.clone()


@dataclass(frozen=True)
class Row:
    """One folded task; float32.

    Attributes:
        shift: [layers, width], the vectors that the base's block adds.
        g_LN0: [e], the embedding LayerNorm's gain; None for the base's.
        gain: [layers, norms, h], the gains of the block's LayerNorms; None for the base's.
        scales: [layers, h or f] by place of `PLACES`.
        scores: its numbers for attention, in float32 in any dtype.
        head: None for the bare base.
    """

    shift: Tensor
    g_LN0: Tensor | None
    gain: Tensor | None
    scales: Mapping[str, Tensor]
    branches: BranchesOf
    scores: RowScores
    head: Head | None


@dataclass(frozen=True)
class Rows:
    """Stacked rows on the compute device, in the compute dtype; `encode` gathers from them.

    Attributes:
        shift: [rows, layers, width].
        g_LN0: [gains, e]; entry 0 is the base's.
        gain: [gains, layers, norms, h]; entry 0 is the base's.
        scales: [entries, layers, h or f] for every place of the base's layers, in the order of `PLACES`; entry 0 is all
            ones.
        numbers: [rows, columns] int64, with the columns of `Number`.
    """

    shift: Tensor
    g_LN0: Tensor
    gain: Tensor
    scales: Mapping[str, Tensor]
    branches: Sequence[Branches]
    scores: Sequence[RowScores]
    heads: Sequence[Head | None]
    numbers: Array

    @cached_property
    def addresses(self) -> tuple[int, ...]:
        """The address of `shift`, its strides by row and layer, and the addresses of `g_LN0` and `gain`."""
        shift = self.shift
        strides = shift.stride(0), shift.stride(1)
        return shift.data_ptr(), *strides, self.g_LN0.data_ptr(), self.gain.data_ptr()


def stack_rows(base: Base, rows: Sequence[Row]) -> Rows:
    """Stacks rows for one `encode`, in the compute dtype; differentiable in every row."""
    defaults = Defaults.for_base(base)
    g_LN0, _ = _stacked([row.g_LN0 for row in rows], defaults.g_LN0)
    gain, gain_entries = _stacked([row.gain for row in rows], defaults.gain)
    scales = {place: _stacked([row.scales.get(place) for row in rows], ones) for place, ones in defaults.scales.items()}
    numbers = empty_numbers(len(rows), base)
    for row, numbers_of_row in zip(rows, numbers, strict=True):
        if row.head is not None:
            numbers_of_row[: Number.BRANCHES] = row.head.numbers
        numbers_of_row[Number.BRANCHES] = bool(row.branches)
    numbers[:, Number.GAIN :] = np.transpose([gain_entries, *(entries for _, entries in scales.values())])
    return Rows(
        shift=torch.stack([row.shift for row in rows]).to(base.dtype),
        g_LN0=g_LN0.to(base.dtype),
        gain=gain.to(base.dtype),
        scales={place: table.to(base.dtype) for place, (table, _) in scales.items()},
        branches=[cast_branches(row, base.dtype) for row in rows],
        scores=[row.scores for row in rows],
        heads=[row.head for row in rows],
        numbers=numbers,
    )


def empty_numbers(rows: int, base: Base) -> Array:
    """`Rows.numbers` of rows without a head, with the base's gains and scales."""
    return np.zeros((rows, Number.SCALES + len(base.anatomy.places)), dtype=np.int64)


def _stacked(tensors: Sequence[Tensor | None], default: Tensor) -> tuple[Tensor, list[int]]:
    present = [tensor for tensor in tensors if tensor is not None]
    indices: list[int] = []
    for tensor in tensors:
        indices.append(0 if tensor is None else 1 + max(indices, default=0))
    return torch.stack([default, *present]), indices


def diverges_at(row: Row, bare: Row, base: Base) -> int:
    """The lowest layer that a row computes differently from the bare base; the number of layers if none differs."""
    defaults = Defaults.for_base(base)
    # Other numbers for attention belong to one layer, whose shift, branches or scales differ as well.
    if "distances" in row.scores:
        return 0
    if row.g_LN0 is not None and (row.g_LN0 != defaults.g_LN0).any():
        return 0
    changed = (row.shift != bare.shift).any(dim=1)
    if row.gain is not None:
        changed |= (row.gain != defaults.gain).flatten(1).any(dim=1)
    for scale in row.scales.values():
        changed |= (scale != 1).any(dim=1)
    joined = {layer for layer, _ in row.branches}
    return next((layer for layer, differs in enumerate(changed.tolist()) if differs or layer in joined), len(changed))


@dataclass(frozen=True)
class Defaults:
    """Gains and scales of a row without its own, in the layout of `Row`, float32."""

    g_LN0: Tensor
    gain: Tensor
    scales: Mapping[str, Tensor]

    @classmethod
    def for_base(cls, base: Base) -> "Defaults":
        layers, norms = range(base.config.num_layers), base.anatomy.block.norms
        gain = [torch.stack([base.param(f"g_{norm}", layer) for norm in norms]) for layer in layers]
        ones = {
            place: torch.ones(len(layers), width, device=base.device) for place, width in base.anatomy.places.items()
        }
        # Without the embeddings' LayerNorm nothing reads its gain.
        g_LN0 = base.param("g_LN0") if "LN0" in base.anatomy.family.outside else torch.ones(1, device=base.device)
        return cls(g_LN0, torch.stack(gain), ones)


def cast_branches(row: Row, dtype: torch.dtype) -> Branches:
    """A row's branches in the compute dtype."""
    return Branches((site, tuple(branch.to(dtype) for branch in branches)) for site, branches in row.branches.items())
