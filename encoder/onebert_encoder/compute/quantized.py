"""The frozen matrix product in 8-bit integers, for answering: faster and less precise than bfloat16.

Each token is quantized at run time over its own range, each row of the weight once (decision 14).
"""

import torch
from torch import Tensor

from onebert_encoder.compute.kernels.products import NativeProducts, Packed, load_products
from onebert_store.errors import InvalidSettings


class Int8Linear:
    """`y = x Wᵀ` without gradients, for W [out, in] float32; raises InvalidSettings without int8 products."""

    def __init__(self, weight: Tensor) -> None:
        self._products = _products(weight.device.type)
        self.packed: Packed = self._products.pack(weight)

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out], both bfloat16 and contiguous."""
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
