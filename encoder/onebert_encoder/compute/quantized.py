"""The frozen matrix product in 8-bit integers, for answering: faster than bfloat16, and coarser.

A token is quantized over its own range when it comes, a row of the weight once (decision 14).
"""

import torch
from torch import Tensor

from onebert_encoder.compute.kernels.products import NativeProducts, Packed, load_products
from onebert_store.errors import InvalidSettings


class Int8Linear:
    """`y = x Wᵀ` without gradients; a token's bits do not depend on other tokens, since integer sums do not round.

    Args:
        weight: [out, in], float32.

    Raises:
        InvalidSettings: this machine cannot compute int8 products.

    Attributes:
        packed: the weight in 8 bits.
    """

    def __init__(self, weight: Tensor) -> None:
        self._products = _products(weight.device.type)
        self.packed: Packed = self._products.pack(weight)

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out], both bfloat16 and contiguous.

        Raises:
            RuntimeError: `x` requires a gradient.
        """
        if torch.is_grad_enabled() and x.requires_grad:
            raise RuntimeError("int8 products have no gradient")
        return self._products.multiply(x, self.packed)


def _products(device: str) -> NativeProducts:
    if device != "cpu":
        raise InvalidSettings("int8 is computed on the CPU only")
    products = load_products(device, torch.int8)
    if products is None:
        raise InvalidSettings("int8 needs the fast CPU kernels, and here they need a C++ compiler (GCC 11 or later)")
    return products
