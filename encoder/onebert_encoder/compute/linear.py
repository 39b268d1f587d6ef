"""The frozen matrix product: oneDNN with prepacked weights where that is faster, plain elsewhere.

On AMD processors PyTorch sends float32 products to MKL, which there reaches less than half of the speed of oneDNN with
weights packed once (docs/decisions/0002-prepacked.md). The oneDNN operators are private to PyTorch, so they are used
only after a check on a small product; elsewhere `torch.nn.functional.linear` computes.
"""

from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.layout.shapes import round_up

Linear = Callable[[Tensor], Tensor]
"""The product with a frozen weight: [tokens, in] -> [tokens, out]."""

# Tokens of the largest product where a text must have the same bits in every batch.
_PIECE = 1024

# Tokens that the packed layout is tuned for; other counts work and were measured to be as fast.
_TYPICAL_ROWS = 512


class FrozenLinear:
    """`y = x Wᵀ` for a weight that is not trained; the gradient flows to `x` only.

    Args:
        make_weight: gives W [out, in] in the compute dtype, on the compute device. A weight that requires a gradient
            is not packed; of a packed one no other copy is kept, so the first backward pass calls `make_weight` again.
        batch_invariant: whether a token shall have the same bits whatever the other tokens are; without gradients.
    """

    def __init__(self, make_weight: Callable[[], Tensor], batch_invariant: bool = False) -> None:
        weight = make_weight()
        packed = not weight.requires_grad and _onednn_works(weight.device.type, weight.dtype)
        product = partial(_onednn, packed=_pack(weight)) if packed else partial(F.linear, weight=weight)
        self._product: Callable[[Tensor], Tensor] = product
        self._differentiable = not packed
        self._make_weight = make_weight
        self._packed_transpose: Tensor | None = None
        self._piece = _PIECE if batch_invariant else None
        self._padded = batch_invariant and _varies(*weight.shape, weight.dtype, weight.device)

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out]."""
        if torch.is_grad_enabled() and x.requires_grad and not self._differentiable:
            return _frozen_product(x, self)
        if torch.is_grad_enabled() or self._piece is None or (len(x) <= self._piece and not self._padded):
            return self._product(x)
        return self._in_pieces(x, self._piece)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out], not differentiable where the weight is packed."""
        return self._product(x)

    def _in_pieces(self, x: Tensor, piece: int) -> Tensor:
        """The product in pieces of at most `piece` tokens; of exactly that many where results vary with the number."""
        padded = F.pad(x, (0, 0, 0, -len(x) % piece)) if self._padded else x
        return torch.cat([self._product(part) for part in padded.split(piece)])[: len(x)]

    def backward(self, grad: Tensor) -> Tensor:
        """The gradient: [tokens, out] -> [tokens, in]; packs Wᵀ on first use, so that serving never holds it."""
        if self._packed_transpose is None:
            self._packed_transpose = _pack(self._make_weight().t().contiguous())
        return _onednn(grad.contiguous(), self._packed_transpose)


class _FrozenProduct(torch.autograd.Function):
    """Gives the packed product, which PyTorch cannot differentiate, its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: FrozenLinear) -> Tensor:
        ctx.linear = linear
        return linear.forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.linear.backward(grads[0]), None


_frozen_product: Callable[[Tensor, FrozenLinear], Tensor] = _FrozenProduct.apply


def _pack(weight: Tensor) -> Tensor:
    packed: Tensor = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), _TYPICAL_ROWS)
    return packed


def _onednn(x: Tensor, packed: Tensor) -> Tensor:
    y: Tensor = torch.ops.mkldnn._linear_pointwise(x, packed, None, "none", [], "")
    return y


@cache
def _onednn_works(device: str, dtype: torch.dtype) -> bool:
    """Whether oneDNN's private operators exist here and agree with `F.linear` on a small product."""
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


@cache
def _varies(out: int, into: int, dtype: torch.dtype, device: torch.device) -> bool:
    """Whether a token's bits depend on the number of tokens in the product, or on its position among them."""
    generator = torch.Generator().manual_seed(0)
    weight, x = (torch.randn(rows, into, generator=generator).to(device, dtype) for rows in (out, _PIECE))
    linear = FrozenLinear(lambda: weight)
    with torch.no_grad():
        whole = linear(x)
        for rows in sorted({round_up(count) for count in range(1, _PIECE)}):
            if not (torch.equal(linear(x[:rows]), whole[:rows]) and torch.equal(linear(x[-rows:]), whole[-rows:])):
                return True
    return False
