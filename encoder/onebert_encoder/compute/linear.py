"""The matrix product with a weight of the base: with a packed weight on a CPU, PyTorch's elsewhere.

PyTorch's float32 product reaches less than half of a CPU's speed on AMD processors, and on every processor for the few
tokens of one text (decisions 2 and 23).
"""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onebert_encoder.compute.kernels.products import NativeProducts, Packed, load_products
from onebert_encoder.compute.plain import PlainLinear
from onebert_encoder.compute.trained import TrainedLinear, load_trained


def make_linear(
    make_weight: Callable[[], Tensor], batch_invariant: bool = False
) -> "PackedLinear | TrainedLinear | PlainLinear":
    """`y = x Wᵀ` by the fastest product here.

    Args:
        make_weight: gives W [out, in] in the compute dtype, on the compute device. Of a weight that is not trained no
            other copy is kept beside the packed one, so the first backward pass calls `make_weight` again.
        batch_invariant: whether a token shall have the same bits whatever the other tokens are; without gradients.
    """
    weight = make_weight()
    if weight.requires_grad and torch.is_grad_enabled():
        tiles = load_trained(weight.device.type, weight.dtype)
        return PlainLinear(weight, batch_invariant) if tiles is None else TrainedLinear(tiles, weight)
    products = load_products(weight.device.type, weight.dtype)
    return PlainLinear(weight, batch_invariant) if products is None else PackedLinear(products, weight, make_weight)


class PackedLinear:
    """By the CPU's own products; a token has the same bits whatever the other tokens are.

    Attributes:
        packed: the weight.
    """

    def __init__(self, products: NativeProducts, weight: Tensor, make_weight: Callable[[], Tensor]) -> None:
        self._products = products
        self._make_weight = make_weight
        self.packed: Packed = products.pack(weight)
        self._packed_transpose: Packed | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out]."""
        return _packed_product(x, self) if torch.is_grad_enabled() and x.requires_grad else self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out], not differentiable."""
        return self._products.multiply(x.contiguous(), self.packed)

    def backward(self, grad: Tensor) -> Tensor:
        """The gradient: [tokens, out] -> [tokens, in]; packs Wᵀ on first use, so that serving never holds it."""
        if self._packed_transpose is None:
            self._packed_transpose = self._products.pack(self._make_weight().t())
        return self._products.multiply(grad.contiguous(), self._packed_transpose)


class _PackedProduct(torch.autograd.Function):
    """Gives the packed product, which PyTorch cannot differentiate, its gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: PackedLinear) -> Tensor:
        ctx.linear = linear
        return linear.forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.linear.backward(grads[0]), None


_packed_product: Callable[[Tensor, PackedLinear], Tensor] = _PackedProduct.apply
