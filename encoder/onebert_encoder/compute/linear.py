"""Chooses the matrix product with a weight of the base: packed on a CPU, PyTorch's elsewhere (decision 23)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from onebert_encoder.compute.kernels.products import NativeProducts, Packed, load_products
from onebert_encoder.compute.plain import PlainLinear
from onebert_encoder.compute.trained import TrainedLinear, load_trained
from onebert_store.errors import InvalidSettings


def make_linear(
    make_weight: Callable[[], Tensor], batch_invariant: bool = False
) -> "PackedLinear | TrainedLinear | PlainLinear":
    """`y = x Wᵀ` by the fastest product on this machine; `batch_invariant` gives a token the same bits in every batch.

    `make_weight` returns W [out, in] in the compute dtype, on the compute device. A packed weight that is not trained
    keeps no other copy, so the first backward pass calls `make_weight` again.
    """
    weight = make_weight()
    if weight.requires_grad and torch.is_grad_enabled():
        tiles = load_trained(weight.device.type, weight.dtype)
        return PlainLinear(weight, batch_invariant) if tiles is None else TrainedLinear(tiles, weight)
    products = load_products(weight.device.type, weight.dtype)
    return PlainLinear(weight, batch_invariant) if products is None else PackedLinear(products, weight, make_weight)


class PackedLinear:
    """The product with a packed weight on the CPU; a token's bits do not depend on the other tokens."""

    def __init__(self, products: NativeProducts, weight: Tensor, make_weight: Callable[[], Tensor]) -> None:
        self._products = products
        self._make_weight = make_weight
        self.packed: Packed = products.pack(weight)
        self._packed_transpose: Packed | None = None

    def __call__(self, x: Tensor) -> Tensor:
        return _packed_product(x, self) if torch.is_grad_enabled() and x.requires_grad else self.forward(x)

    def forward(self, x: Tensor) -> Tensor:
        return self._products.multiply(x.contiguous(), self.packed)

    def unpacked(self, part: int, parts: int) -> Tensor:
        """One of the float32 weights, of equal size, that were joined; bit by bit."""
        return self._products.unpack(self.packed).chunk(parts)[part]

    def backward(self, grad: Tensor) -> Tensor:
        """The gradient: [tokens, out] -> [tokens, in]; packs Wᵀ on first use, so a server never holds it."""
        if self._packed_transpose is None:
            self._packed_transpose = self._products.pack(self._make_weight().t())
        return self._products.multiply(grad.contiguous(), self._packed_transpose)


class Int8Linear(PackedLinear):
    """The product of bfloat16 tokens in 8-bit integers, for answering: faster and less precise than bfloat16.

    Each token is quantized at run time over its own range, each row of the weight [out, in], float32, once (decision
    14). Raises InvalidSettings without int8 products.
    """

    def __init__(self, weight: Tensor) -> None:
        if weight.device.type != "cpu":
            raise InvalidSettings("int8 is computed on the CPU only")
        products = load_products("cpu", torch.int8)
        if products is None:
            raise InvalidSettings(
                "int8 needs the fast CPU kernels, and here they need a C++ compiler (GCC 11 or later)"
            )
        super().__init__(products, weight, _no_gradient)

    def __call__(self, x: Tensor) -> Tensor:
        return _no_gradient() if torch.is_grad_enabled() and x.requires_grad else self.forward(x)


def _no_gradient() -> Tensor:
    raise RuntimeError("int8 products have no gradient")


class _PackedProduct(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, linear: PackedLinear) -> Tensor:
        ctx.linear = linear
        return linear.forward(x)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return ctx.linear.backward(grads[0]), None


_packed_product: Callable[[Tensor, PackedLinear], Tensor] = _PackedProduct.apply
