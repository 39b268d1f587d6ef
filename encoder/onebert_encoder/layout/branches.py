"""Branches, which add a task's own matrices to a shared product on its tokens: low-rank, core, sparse, bottleneck."""

from collections import defaultdict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.layout.upload import Array


@dataclass(frozen=True, eq=False)
class Directions:
    """The leading directions of a weight W ≈ up · down, largest first; rank r uses the first r.

    `down` is [rank, in], `up` [out, rank] column-major; `reach` as in `LowRank`. Variants for a dtype or a wider
    product are cached, so rows that share directions share one object.
    """

    down: Tensor
    up: Tensor
    reach: Tensor | None = None
    _variants: dict[Hashable, "Directions"] = field(default_factory=dict, repr=False)

    def to(self, dtype: torch.dtype) -> "Directions":
        if dtype == self.down.dtype:
            return self
        return self._once(dtype, lambda: Directions(self.down.to(dtype), self.up.T.to(dtype).T, self.reach))

    def among(self, index: int, count: int) -> "Directions":
        """The directions widened for a product of `count` equal maps side by side; this map is number `index`."""
        return self if count == 1 else self._once((index, count), lambda: self._widened(index, count))

    def _widened(self, index: int, count: int) -> "Directions":
        out, rank = self.up.shape
        block = slice(index * out, (index + 1) * out)
        columns = self.up.new_zeros(rank, count * out)
        columns[:, block] = self.up.T
        return Directions(self.down, columns.T, torch.tensor([[block.start, block.stop]] * rank))

    def _once(self, key: Hashable, make: Callable[[], "Directions"]) -> "Directions":
        if key not in self._variants:
            # Training may use tensors that answering created first, so they must not be inference tensors.
            with torch.inference_mode(False), torch.no_grad():
                # If several threads get here at once, all use the object that the first one stored.
                return self._variants.setdefault(key, make())
        return self._variants[key]


# Entries of a sparse difference per step: each takes one number per token, so a step takes as much memory as the widest
# activations.
_ENTRIES_AT_ONCE = 4096


class _Owned:
    @property
    def nbytes(self) -> int:
        """Bytes of the row's own tensors on the device."""
        return sum(x.nbytes for name, x in vars(self).items() if isinstance(x, Tensor) and name != "reach")


@dataclass(frozen=True)
class LowRank(_Owned):
    """x (B A)ᵀ for A [r, in] and B [out, r] (LoRA, Hu et al. 2022, equation 3; B contains the scale α / r).

    `reach` [r, 2] int64 on the CPU is the range of outputs where each column of B is nonzero; None if unknown.
    """

    A: Tensor
    B: Tensor
    reach: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return x @ self.A.T @ self.B.T

    def to(self, dtype: torch.dtype) -> "LowRank":
        """Casts to the compute dtype and lays the matrices out for the kernels."""
        return LowRank(self.A.to(dtype).contiguous(), _by_columns(self.B.to(dtype)), self.reach)

    @cached_property
    def native(self) -> tuple[int, ...]:
        """Numbers for the compiled kernels: the rank and the addresses of A, B, no bias, no core and the reach."""
        return len(self.A), self.A.data_ptr(), self.B.data_ptr(), 0, 0, _address(self.reach)


@dataclass(frozen=True)
class Core(_Owned):
    """x (U Σ R Vᵀ)ᵀ for the row's own R [r, r] (LoRA-XS, Bałazy et al. 2024); all rows share U Σ and Vᵀ."""

    R: Tensor
    shared: Directions

    def __call__(self, x: Tensor) -> Tensor:
        rank = len(self.R)
        return x @ self.shared.down[:rank].T @ self.R.T @ self.shared.up[:, :rank].T

    def to(self, dtype: torch.dtype) -> "Core":
        return Core(_by_columns(self.R.to(dtype)), self.shared.to(dtype))

    @cached_property
    def native(self) -> tuple[int, ...]:
        """The fields of `LowRank.native`, with the address of R (column-major) as the core."""
        down, up = self.shared.down.data_ptr(), self.shared.up.data_ptr()
        return len(self.R), down, up, 0, self.R.data_ptr(), _address(self.shared.reach)


@dataclass(frozen=True)
class Sparse(_Owned):
    """x Sᵀ for S [out, in] with n nonzero entries `values` at `indices` [2, n] int64 (rows, columns; ascending)."""

    indices: Tensor
    values: Tensor
    shape: tuple[int, int]

    def __call__(self, x: Tensor) -> Tensor:
        """Sums in float32."""
        return _sparse_product(x.float(), self.values.float(), self.indices, self.shape).to(x.dtype)

    def dense(self) -> Tensor:
        rows, columns = self.indices
        matrix = self.values.new_zeros(self.shape)
        matrix[rows, columns] = self.values
        return matrix

    def to(self, dtype: torch.dtype) -> "Sparse":
        return Sparse(self.indices, self.values.to(dtype), self.shape)

    @cached_property
    def native(self) -> tuple[int, ...]:
        """The numbers that branches.h reads: the number of entries and the addresses of rows, columns and values."""
        rows, columns = self.indices
        return len(self.values), rows.data_ptr(), columns.data_ptr(), self.values.data_ptr()


class _SparseProduct(torch.autograd.Function):
    """x Sᵀ with gradients; PyTorch's own would keep one number per token and entry until the backward pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, values: Tensor, indices: Tensor, shape: tuple[int, int]) -> Tensor:
        ctx.save_for_backward(x, values, indices)
        ctx.shape = shape
        rows, columns = indices
        return _scatter(x, columns, values, rows, shape[0])

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        x, values, indices = ctx.saved_tensors
        of_x, of_values = ctx.needs_input_grad[:2]
        rows, columns = indices
        grad = grads[0]
        return (
            _scatter(grad, rows, values, columns, ctx.shape[1]) if of_x else None,
            (grad.index_select(1, rows) * x.index_select(1, columns)).sum(0) if of_values else None,
            None,
            None,
        )


_sparse_product: Callable[[Tensor, Tensor, Tensor, tuple[int, int]], Tensor] = _SparseProduct.apply


def _scatter(x: Tensor, source: Tensor, values: Tensor, target: Tensor, width: int) -> Tensor:
    out = x.new_zeros(len(x), width)
    entries = zip(*(entry.split(_ENTRIES_AT_ONCE) for entry in (source, values, target)), strict=True)
    for of_x, value, of_out in entries:
        out.index_add_(1, of_out, x.index_select(1, of_x).mul_(value))
    return out


@dataclass(frozen=True)
class Bottleneck(_Owned):
    """U gelu(D x + c), an adapter (Houlsby et al. 2019, Figure 2) with D [r, h] and U [h, r], without its last bias.

    `fold` has moved the last bias into the row's shift, and added D times the bias missing from the input to c [r].
    """

    D: Tensor
    c: Tensor
    U: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(F.gelu(F.linear(x, self.D, self.c)), self.U)

    def to(self, dtype: torch.dtype) -> "Bottleneck":
        return Bottleneck(self.D.to(dtype).contiguous(), self.c.to(dtype), _by_columns(self.U.to(dtype)))

    @cached_property
    def native(self) -> tuple[int, ...]:
        """The fields of `LowRank.native`, with the address of c and neither core nor reach."""
        return len(self.D), self.D.data_ptr(), self.U.data_ptr(), self.c.data_ptr(), 0, 0


def _by_columns(matrix: Tensor) -> Tensor:
    return matrix.T.contiguous().T


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


Branch = LowRank | Core | Sparse | Bottleneck

Joined = tuple[int, int, Sequence[Branch]]
"""Tokens `start:stop` of a batch and the branches of their row."""

LayerSite = tuple[int, str]
"""Layer and site, a place in the layer at which a block lets branches add."""

BranchesOf = Mapping[LayerSite, tuple[Branch, ...]]
"""All branches of one row."""


# The turns of each kind of task that this process has seen; equal ones are one object.
_TURNS: dict[tuple[tuple[LayerSite, int], ...], tuple[tuple[LayerSite, int], ...]] = {}


class Branches(dict[LayerSite, tuple[Branch, ...]]):
    """All branches of one row in the compute dtype; immutable, since the kernels' view of them is cached."""

    _native: tuple[Array, Array] | None = None

    @cached_property
    def dense(self) -> tuple[tuple[tuple[LayerSite, int], ...], Array]:
        """The n branches that are not sparse: (site, number of earlier ones there), and [n, 5] of `native`."""
        turned = [
            ((site, turn), branch.native[:5])
            for site, branches in self.items()
            for turn, branch in enumerate(branch for branch in branches if not isinstance(branch, Sparse))
        ]
        turns, numbers = zip(*turned, strict=True) if turned else ((), ())
        return _TURNS.setdefault(turns, turns), np.array(numbers, dtype=np.int64).reshape(-1, 5)

    def native(self, sites: Sequence[str]) -> tuple[Array, Array]:
        """[n, 7] for branches that are not sparse and [n, 5] for sparse ones: the site's number, then `native`.

        A site's number is layer * len(sites) + its index in `sites`. Cached for the first `sites`: a base has one kind
        of layers.
        """
        if self._native is None:
            numbers: tuple[list[tuple[int, ...]], list[tuple[int, ...]]] = [], []
            for (layer, site), branches in self.items():
                for branch in branches:
                    fields = layer * len(sites) + sites.index(site), *branch.native
                    numbers[isinstance(branch, Sparse)].append(fields)
            low_rank, sparse = (np.array(fields, dtype=np.int64) for fields in numbers)
            self._native = low_rank.reshape(-1, 7), sparse.reshape(-1, 5)
        return self._native

    @cached_property
    def sparse(self) -> Mapping[LayerSite, tuple[Branch, ...]]:
        by_site = {site: tuple(b for b in branches if isinstance(b, Sparse)) for site, branches in self.items()}
        return {site: branches for site, branches in by_site.items() if branches}


def join(of_row: Callable[[int], BranchesOf], spans: Array) -> dict[LayerSite, list[Joined]]:
    """For each layer and site, the spans [spans, 3] (row, start, stop) whose row has branches there."""
    joined: defaultdict[LayerSite, list[Joined]] = defaultdict(list)
    by_row = {row: of_row(row) for row in set(spans[:, 0].tolist())}
    for row, start, stop in spans.tolist() if any(by_row.values()) else ():
        for site, branches in by_row[row].items():
            joined[site].append((start, stop, branches))
    return joined


def merged(joined: Sequence[Joined]) -> list[Joined]:
    """Merges neighboring spans of one row: oneDNN compiles a product anew for every number of tokens."""
    runs: list[Joined] = []
    for start, stop, branches in joined:
        continues = bool(runs) and runs[-1][1] == start and runs[-1][2] is branches
        runs.append((runs.pop()[0] if continues else start, stop, branches))
    return runs
