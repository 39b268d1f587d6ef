"""What one task adds to the shared products on its own tokens: low-rank, sparse and bottleneck branches."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

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

Branches = Mapping[tuple[int, str], tuple[Branch, ...]]
"""(layer, site) -> what joins the product there: at `qkv m1 m2 m3` it reads what the product reads; at `after_m1
after_m3` it reads what the product gives, dropout included."""
