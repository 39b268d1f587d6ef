"""Rows: folded tasks, single ones as `fold` makes them, and stacked ones from which `encode` gathers."""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain

import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.layout.branches import Branches, BranchesOf
from onebert_store.file.delta import PLACES

# What a head reads of its sequence, as forward.h numbers it.
POOLED = {"cls": 0, "pooler": 0, "mean": 1, "none": 2}


@dataclass(frozen=True)
class Head:
    """What reads the encoder's last layer: zero or more tanh layers on the pooled vector, then the classifier.

    Attributes:
        pooling: `mean` reads the mean over tokens, `none` every token by itself, `cls` and `pooler` the first token,
            `siamese` the means of both texts of a pair.
        dense: (W [h, h], b [h]) of each tanh layer; the base's pooler is the first where the task uses it.
        weight: [labels, h], float32; of two texts [labels, 4h + 1].
        bias: [labels], float32.
        shift: [h], float32, what the means of both texts lack, the bias of the last LayerNorm; else None, since any
            other head has it in its first bias.
    """

    pooling: str
    dense: tuple[tuple[Tensor, Tensor], ...]
    weight: Tensor
    bias: Tensor
    shift: Tensor | None = None

    @cached_property
    def native(self) -> tuple[int, ...] | None:
        """What compiled code reads of a head; None where its tensors lie otherwise, or PyTorch's products are used.

        The addresses of `weight` and `bias`, the number of labels, what is read, and the address and length of a list
        of the tanh layers' addresses.
        """
        tensors = (self.weight, self.bias, *chain.from_iterable(self.dense))
        if not all(one.is_contiguous() and one.dtype == torch.float32 for one in tensors):
            return None
        # A tanh layer on every token is a product of matrices, which the call would do vector by vector.
        if self.pooling not in POOLED or (self.pooling == "none" and self.dense):
            return None
        addresses = array("q", [one.data_ptr() for layer in self.dense for one in layer])
        # Of threads that come here together the first decides: the list that C++ reads must be the one that is kept.
        dense = self.__dict__.setdefault("_dense_addresses", addresses).buffer_info()[0]
        labels, pooled = self.bias.shape[0], POOLED[self.pooling]
        return self.weight.data_ptr(), self.bias.data_ptr(), labels, pooled, dense, len(self.dense)

    @property
    def nbytes(self) -> int:
        """Bytes of the classifier, and of what stands before it but for tanh layers, which may be the base's."""
        return sum(one.nbytes for one in (self.weight, self.bias, self.shift) if one is not None)

    def copied(self) -> "Head":
        """A copy in memory of its own, except for the matrices of the tanh layers, which may be the base's."""
        dense = tuple((W, b.clone()) for W, b in self.dense)
        shift = None if self.shift is None else self.shift.clone()
        return replace(self, dense=dense, weight=self.weight.clone(), bias=self.bias.clone(), shift=shift)


@dataclass(frozen=True)
class Row:
    """One folded task; float32.

    Attributes:
        shift: [layers, 3h + f], the vectors b_q' b_m1' b_m3' (h each) and b_m2' (f) of each layer.
        g_LN0: [e], the embedding LayerNorm's gain; None for the base's.
        gain: [layers, 2, h], g_LN1 and g_LN2; None for the base's.
        scales: [layers, h or f] for each of `PLACES` where the task scales something: the outputs of the maps of these
            names, and `inner`, the input of W_m3.
        branches: what the task adds to the shared products.
        head: the classifier, or None for the bare base.
    """

    shift: Tensor
    g_LN0: Tensor | None
    gain: Tensor | None
    scales: Mapping[str, Tensor]
    branches: BranchesOf
    head: Head | None


@dataclass(frozen=True)
class Scales:
    """The scales of several rows at one place.

    Attributes:
        table: [entries, layers, h or f], compute dtype; entry 0 is all ones.
        of_row: index into `table` for each row.
    """

    table: Tensor
    of_row: Sequence[int]


@dataclass(frozen=True)
class Rows:
    """Several rows on the compute device, indexed by the first dimension; what `encode` gathers from.

    Attributes:
        shift: [rows, layers, 3h + f], compute dtype.
        g_LN0: [gains, e], compute dtype; entry 0 is the base's.
        gain: [gains, layers, 2, h], compute dtype; entry 0 is the base's.
        gain_of_row: index into `g_LN0` and `gain` for each row; 0 is the base's.
        scales: by place, for every place of `PLACES` and in their order.
        branches: for each row its branches in the compute dtype, mostly none.
        heads: the classifier of each row.
    """

    shift: Tensor
    g_LN0: Tensor
    gain: Tensor
    gain_of_row: Sequence[int]
    scales: Mapping[str, Scales]
    branches: Sequence[Branches]
    heads: Sequence[Head | None]


def stack_rows(base: Base, rows: Sequence[Row]) -> Rows:
    """Rows for one `encode`, in the compute dtype; differentiable in every row."""
    defaults = Defaults.of(base)
    g_LN0, gain_of_row = _stacked([row.g_LN0 for row in rows], defaults.g_LN0)
    gain, _ = _stacked([row.gain for row in rows], defaults.gain)
    scales = {place: _stacked([row.scales.get(place) for row in rows], ones) for place, ones in defaults.scales.items()}
    return Rows(
        shift=torch.stack([row.shift for row in rows]).to(base.dtype),
        g_LN0=g_LN0.to(base.dtype),
        gain=gain.to(base.dtype),
        gain_of_row=gain_of_row,
        scales={place: Scales(table.to(base.dtype), of_row) for place, (table, of_row) in scales.items()},
        branches=[cast_branches(row, base.dtype) for row in rows],
        heads=[row.head for row in rows],
    )


def _stacked(own: Sequence[Tensor | None], default: Tensor) -> tuple[Tensor, list[int]]:
    """The default followed by the tensors of the rows that have one, and the index of each row's tensor among them."""
    found = [one for one in own if one is not None]
    indices: list[int] = []
    for one in own:
        indices.append(0 if one is None else 1 + max(indices, default=0))
    return torch.stack([default, *found]), indices


def diverges_at(row: Row, bare: Row, base: Base) -> int:
    """The lowest layer that a row computes differently from the bare base; the number of layers if there is none.

    Every row is folded by the same sequence of operations, so layers that the task does not change are equal in bits.
    """
    defaults = Defaults.of(base)
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
    """The gains and scales of a row that has none of its own, in the layout of `Row`, float32."""

    g_LN0: Tensor
    gain: Tensor
    scales: Mapping[str, Tensor]

    @classmethod
    def of(cls, base: Base) -> "Defaults":
        """The defaults on a base."""
        config = base.config
        layers = range(config.num_layers)
        gain = [torch.stack([base.param("g_LN1", layer), base.param("g_LN2", layer)]) for layer in layers]
        ones = {
            place: torch.ones(len(layers), base.param(symbol, 0).shape[side], device=base.device)
            for place, (_, symbol, side) in PLACES.items()
        }
        return cls(base.param("g_LN0"), torch.stack(gain), ones)


def cast_branches(row: Row, dtype: torch.dtype) -> Branches:
    """A row's branches in the compute dtype."""
    return Branches((site, tuple(branch.to(dtype) for branch in found)) for site, found in row.branches.items())
