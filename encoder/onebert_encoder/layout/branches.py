"""What one task adds to the shared products on its own tokens: low-rank, sparse and bottleneck branches."""

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.layout.upload import Array

# A number for each of them and each token is held for a moment, as much as the widest activations.
_ENTRIES_AT_ONCE = 4096


@dataclass(frozen=True)
class LowRank:
    """x (B A)ᵀ for A [r, in] and B [out, r] (LoRA, Hu et al. 2022, equation 3, its scale inside B)."""

    A: Tensor
    B: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out]."""
        return x @ self.A.T @ self.B.T

    def to(self, dtype: torch.dtype) -> "LowRank":
        """The same in the compute dtype, laid out for the kernels."""
        return LowRank(self.A.to(dtype).contiguous(), _by_columns(self.B.to(dtype)))

    @cached_property
    def native(self) -> tuple[int, ...]:
        """What branches.cpp reads: rank and addresses."""
        return len(self.A), self.A.data_ptr(), self.B.data_ptr(), 0

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.A.nbytes + self.B.nbytes


@dataclass(frozen=True)
class Sparse:
    """x Sᵀ for a weight difference S that is zero nearly everywhere.

    Attributes:
        places: [2, n] int64, rows and columns of the entries, in order.
        values: [n].
        shape: of S, (out, in).
    """

    places: Tensor
    values: Tensor
    shape: tuple[int, int]

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out]; summed in float32."""
        out: Tensor = _SparseProduct.apply(x.float(), self.values.float(), self.places, self.shape)  # type: ignore[no-untyped-call]
        return out.to(x.dtype)

    def to(self, dtype: torch.dtype) -> "Sparse":
        """The same with its values in the compute dtype."""
        return Sparse(self.places, self.values.to(dtype), self.shape)

    @cached_property
    def native(self) -> tuple[int, ...]:
        """What branches.cpp reads: entries and addresses."""
        rows, columns = self.places
        return len(self.values), rows.data_ptr(), columns.data_ptr(), self.values.data_ptr()

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.places.nbytes + self.values.nbytes


class _SparseProduct(torch.autograd.Function):
    """x Sᵀ and its gradients, of which PyTorch's own would keep a number for every token and entry."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, places: Tensor, shape: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x, values, places)
        ctx.shape = shape
        rows, columns = places
        return _scatter(x, columns, values, rows, shape[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, values, places = ctx.saved_tensors
        of_x, of_values = ctx.needs_input_grad[:2]
        rows, columns = places
        grad = grads[0]
        return (
            _scatter(grad, rows, values, columns, ctx.shape[1]) if of_x else None,
            (grad.index_select(1, rows) * x.index_select(1, columns)).sum(0) if of_values else None,
            None,
            None,
        )


def _scatter(x: Tensor, source: Tensor, values: Tensor, target: Tensor, width: int) -> Tensor:
    """[tokens, width], at `target` the sums of the entries' products with x at `source`."""
    out = x.new_zeros(len(x), width)
    entries = zip(*(one.split(_ENTRIES_AT_ONCE) for one in (source, values, target)), strict=True)
    for of_x, value, of_out in entries:
        out.index_add_(1, of_out, x.index_select(1, of_x).mul_(value))
    return out


@dataclass(frozen=True)
class Bottleneck:
    """U gelu(D x + c), what a Houlsby adapter adds to its input (Houlsby et al. 2019, Figure 2); `u` is folded.

    Attributes:
        D: [r, h].
        c: [r], with what the input's missing bias would give.
        U: [h, r].
    """

    D: Tensor
    c: Tensor
    U: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, h] -> [tokens, h]."""
        return F.linear(F.gelu(F.linear(x, self.D, self.c)), self.U)

    def to(self, dtype: torch.dtype) -> "Bottleneck":
        """The same in the compute dtype, laid out for the kernels."""
        return Bottleneck(self.D.to(dtype).contiguous(), self.c.to(dtype), _by_columns(self.U.to(dtype)))

    @cached_property
    def native(self) -> tuple[int, ...]:
        """What branches.cpp reads: rank and addresses."""
        return len(self.D), self.D.data_ptr(), self.U.data_ptr(), self.c.data_ptr()

    @property
    def nbytes(self) -> int:
        """Bytes on the device."""
        return self.D.nbytes + self.c.nbytes + self.U.nbytes


def _by_columns(matrix: Tensor) -> Tensor:
    """The same matrix, one column after the other in memory."""
    return matrix.T.contiguous().T


Branch = LowRank | Sparse | Bottleneck

Joined = tuple[int, int, Sequence[Branch]]
"""Tokens `start:stop` of a batch and the branches of their row."""

LayerSite = tuple[int, str]
"""Layer and site. At `qkv m1 m2 m3` a branch reads what the product reads; at `after_m1 after_m3` it reads what the
product gives, dropout included."""

BranchesOf = Mapping[LayerSite, tuple[Branch, ...]]
"""What one row adds to the shared products."""


class Branches(dict[LayerSite, tuple[Branch, ...]]):
    """The same in the compute dtype, with what kernels read of it, worked out once; not changed any more."""

    @cached_property
    def dense(self) -> tuple[tuple[tuple[LayerSite, int], ...], Array]:
        """Low-rank branches and adapters: (place, how many come before it there) of each, and [n, 4] of `native`."""
        found = [
            ((place, turn), branch.native)
            for place, branches in self.items()
            for turn, branch in enumerate(one for one in branches if not isinstance(one, Sparse))
        ]
        turns, numbers = zip(*found, strict=True) if found else ((), ())
        return tuple(turns), np.array(numbers, dtype=np.int64).reshape(-1, 4)

    @cached_property
    def sparse(self) -> Mapping[LayerSite, tuple[Branch, ...]]:
        """The others, by place."""
        found = {place: tuple(one for one in own if isinstance(one, Sparse)) for place, own in self.items()}
        return {place: own for place, own in found.items() if own}


def join(of_row: Callable[[int], BranchesOf], spans: Sequence[tuple[int, int, int]]) -> dict[LayerSite, list[Joined]]:
    """By layer and site the spans of tokens, (row, start, stop), whose row has branches there."""
    joined: defaultdict[LayerSite, list[Joined]] = defaultdict(list)
    for row, start, stop in spans:
        for place, found in of_row(row).items():
            joined[place].append((start, stop, found))
    return joined
