"""Products with a weight that changes at every step, forward and backward, on our own tiles where they are faster."""

import ctypes
import logging
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from onebert_encoder.compute.kernels.library import find_library, functions_of
from onebert_encoder.compute.kernels.products import FETCHED_AHEAD, PANEL, NativeProducts, Packed, load_products

logger = logging.getLogger("onebert.kernels")

_POINTER, _INT = ctypes.c_void_p, ctypes.c_int64
_SIGNATURES = {
    "pack_trained": (_POINTER, *[_INT] * 4, _POINTER, _INT),
    "transpose": (_POINTER, *[_INT] * 2, _POINTER, _INT),
}


class TrainedLinear:
    """The product with a float32 weight that is trained; packs what it multiplies by in every pass.

    Args:
        tiles: the compiled functions.
        weight: W [out, in], contiguous.
    """

    def __init__(self, tiles: "TrainedTiles", weight: Tensor) -> None:
        self._tiles, self._weight = tiles, weight

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out]."""
        return _product(x.contiguous(), self._weight, self._tiles)


class TrainedTiles:
    """Products of two float32 matrices, neither of which stays as it is."""

    def __init__(self, library: ctypes.CDLL, products: NativeProducts) -> None:
        self._products = products
        self._pack, self._transpose = functions_of(library, _SIGNATURES).values()

    def multiply(self, x: Tensor, weight: Tensor) -> Tensor:
        """x Wᵀ: [rows, in] -> [rows, out] for W [out, in], which may be a transposed matrix; x is contiguous."""
        out, into = weight.shape
        numbers = torch.empty(-(-out // PANEL) * PANEL * into + FETCHED_AHEAD // weight.itemsize)
        self._pack(weight.data_ptr(), out, into, *weight.stride(), numbers.data_ptr(), torch.get_num_threads())
        return self._products.multiply(x, Packed(numbers, None, None, (out, into)))

    def transpose(self, x: Tensor) -> Tensor:
        """The transpose of a contiguous matrix, contiguous."""
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
    """The tiles; None where PyTorch's products are as fast, where the tiles cannot be built, or where they are wrong.

    Decided by the processor and not by a clock, so that an equal run gives equal bytes.
    """
    if dtype != torch.float32 or not mkl_is_held_back():
        return None
    products, library = load_products(device, dtype), find_library()
    if products is None or library is None:
        return None
    tiles = TrainedTiles(library, products)
    if not _matches_plain(tiles):
        logger.warning("the fast CPU products for training give wrong numbers on this machine, so plain PyTorch trains")
        return None
    return tiles


@cache
def mkl_is_held_back() -> bool:
    """Whether PyTorch multiplies by Intel's MKL on a processor whose widest instructions MKL leaves out."""
    cpu = Path("/proc/cpuinfo")
    return torch.backends.mkl.is_available() and cpu.exists() and leaves_out(cpu.read_text(encoding="utf-8"))


def leaves_out(cpuinfo: str) -> bool:
    """Whether MKL leaves out instructions of a processor, from what Linux says of it: AVX-512 of other vendors.

    AVX2 is taken on every processor, and has all there is to have where there is no AVX-512.
    """
    return "avx512f" in cpuinfo.split() and "GenuineIntel" not in cpuinfo


def _matches_plain(tiles: TrainedTiles) -> bool:
    """Whether a small product and its gradients are right."""
    generator = torch.Generator().manual_seed(0)
    x, weight, grad = (torch.randn(*shape, generator=generator) for shape in ((45, 50), (72, 50), (45, 72)))
    found = (tiles.multiply(x, weight), tiles.multiply(grad, weight.t()), tiles.multiply(tiles.transpose(grad), x.t()))
    # Sums of up to 72 products of order 1.
    return all(
        torch.allclose(got, want, rtol=0, atol=1e-4)
        for got, want in zip(found, (x @ weight.T, grad @ weight, grad.T @ x), strict=True)
    )
