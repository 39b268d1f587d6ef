"""The frozen matrix product: oneDNN with prepacked weights where that is faster, plain elsewhere.

On AMD processors PyTorch sends float32 products to MKL, which there reaches less than half of what oneDNN does with
weights packed once (docs/decisions/0002-prepacked.md). The oneDNN operators are private to PyTorch, so they are
used only after they have been seen to work, and `torch.nn.functional.linear` takes their place where they are not.
"""

from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

# Rows that the packed layout is tuned for; other counts work and were measured to be as fast.
_TYPICAL_ROWS = 512


class FrozenLinear:
    """`y = x Wᵀ` for a weight that is not trained; the gradient flows to `x` only.

    Args:
        weight: [out, in] in the compute dtype, on the compute device; one that requires a gradient is left plain.
    """

    def __init__(self, weight: Tensor) -> None:
        self._weight = weight
        frozen = not weight.requires_grad and _onednn_works(weight.device.type, weight.dtype)
        self._packed = _pack(weight) if frozen else None
        self._packed_transpose: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out]."""
        if self._packed is None:
            return F.linear(x, self._weight)
        if torch.is_grad_enabled() and x.requires_grad:
            out: Tensor = _FrozenProduct.apply(x, self._packed, self)  # type: ignore[no-untyped-call]
            return out
        return _onednn(x, self._packed)

    def backward(self, grad: Tensor) -> Tensor:
        """[tokens, out] -> [tokens, in]; packs the transposed weight on first use, so serving never holds it."""
        if self._packed_transpose is None:
            self._packed_transpose = _pack(self._weight.t().contiguous())
        return _onednn(grad.contiguous(), self._packed_transpose)


class _FrozenProduct(torch.autograd.Function):
    """Autograd around the packed product, which PyTorch does not differentiate."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, packed: Tensor, linear: FrozenLinear) -> Tensor:
        ctx.linear = linear
        return _onednn(x, packed)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return ctx.linear.backward(grads[0]), None, None


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _TYPICAL_ROWS)
    return packed


def _onednn(x: Tensor, packed: Tensor) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return y


@cache
def _onednn_works(device: str, dtype: torch.dtype) -> bool:
    """Whether the private operators exist here and agree with the public one on a small product."""
    if device != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 64, generator=generator).to(dtype)
    weight = torch.randn(96, 64, generator=generator).to(dtype)
    try:
        with torch.no_grad():
            got = _onednn(x, _pack(weight))
    except (AttributeError, RuntimeError):
        return False
    want = F.linear(x.float(), weight.float())
    # 64 products of order 1: rounding stays far below this in both dtypes, a wrong layout does not.
    return bool(torch.allclose(got.float(), want, atol=0.2 if dtype == torch.bfloat16 else 1e-3))
