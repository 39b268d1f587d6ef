"""Products with a weight that changes at every step, forward and backward, on our own tiles if they are faster."""

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onebert_encoder.compute.kernels.library import INT, POINTER, find_library, functions_of
from onebert_encoder.compute.kernels.products import FETCHED_AHEAD, PANEL, NativeProducts, Packed, load_products

logger = logging.getLogger("onebert.kernels")

_SIGNATURES = {
    "pack_trained": (POINTER, *[INT] * 4, POINTER, INT),
    "transpose": (POINTER, *[INT] * 2, POINTER, INT),
}


class TrainedLinear:
    """The product with a trained float32 weight [out, in], contiguous; packs its factors in every pass."""

    def __init__(self, tiles: "TrainedTiles", weight: Tensor) -> None:
        self._tiles, self._weight = tiles, weight

    def __call__(self, x: Tensor) -> Tensor:
        return _product(x.contiguous(), self._weight, self._tiles)


class TrainedTiles:
    """Products of two float32 matrices that both change between calls."""

    def __init__(self, library: ctypes.CDLL, products: NativeProducts) -> None:
        self._products = products
        self._pack, self._transpose = functions_of(library, _SIGNATURES).values()

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """x Wᵀ: [rows, in] -> [rows, out]; W [out, in] may be a transposed view, x is contiguous."""
        out, into = weight.shape
        numbers = torch.empty(-(-out // PANEL) * PANEL * into + FETCHED_AHEAD // weight.itemsize)
        self._pack(weight.data_ptr(), out, into, *weight.stride(), numbers.data_ptr(), torch.get_num_threads())
        return self._products.multiply(x, Packed(numbers, None, None, (out, into)))

    def transpose(self, x: Tensor) -> Tensor:
        out = x.new_empty(x.shape[1], x.shape[0])
        self._transpose(x.data_ptr(), *x.shape, out.data_ptr(), torch.get_num_threads())
        return out


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, tiles: TrainedTiles) -> Tensor:
        ctx.save_for_backward(x, weight)
        ctx.tiles = tiles
        return tiles.multiply(x, weight)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, Tensor | None, None]:
        (x, weight), tiles = ctx.saved_tensors, ctx.tiles
        grad = grads[0].contiguous()
        of_x, of_weight = ctx.needs_input_grad[:2]
        return (
            tiles.multiply(grad, weight.t()) if of_x else None,
            tiles.multiply(tiles.transpose(grad), x.t()) if of_weight else None,
            None,
        )


_product: Callable[[Tensor, Tensor, TrainedTiles], Tensor] = _Product.apply


@cache
def load_trained(device: str, dtype: torch.dtype) -> TrainedTiles | None:
    """The tiles; None if PyTorch is as fast on this processor, or they cannot be built or give wrong numbers."""
    if dtype != torch.float32 or not mkl_is_held_back():
        return None
    products, library = load_products(device, dtype), find_library()
    if products is None or library is None:
        return None
    tiles = TrainedTiles(library, products)
    if not (right := _matches_plain(tiles)):
        logger.warning("the fast CPU products for training give wrong numbers on this machine, so plain PyTorch trains")
    return tiles if right else None


@cache
def mkl_is_held_back() -> bool:
    """Whether PyTorch multiplies with Intel's MKL on a processor whose AVX-512 MKL does not use."""
    cpu = Path("/proc/cpuinfo")
    return torch.backends.mkl.is_available() and cpu.exists() and leaves_out(cpu.read_text(encoding="utf-8"))


def leaves_out(cpuinfo: str) -> bool:
    """Whether MKL ignores AVX-512 here (/proc/cpuinfo): it does on all but Intel's processors, and uses AVX2 on all."""
    return "avx512f" in cpuinfo.split() and "GenuineIntel" not in cpuinfo


def _matches_plain(tiles: TrainedTiles) -> bool:
    generator = torch.Generator().manual_seed(0)
    x, weight, grad = (torch.randn(*shape, generator=generator) for shape in ((45, 50), (72, 50), (45, 72)))
    ours = (tiles.multiply(x, weight), tiles.multiply(grad, weight.t()), tiles.multiply(tiles.transpose(grad), x.t()))
    # Sums of up to 72 products of order 1.
    return all(
        torch.allclose(got, want, rtol=0, atol=1e-4)
        for got, want in zip(ours, (x @ weight.T, grad @ weight, grad.T @ x), strict=True)
    )
