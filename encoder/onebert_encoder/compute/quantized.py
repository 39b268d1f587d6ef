"""The frozen matrix product in 8-bit integers, for answering: faster than bfloat16, and coarser.

Every token is quantized over its own range as it is computed, every row of the weight once, at start
(docs/decisions/0014-int8.md). oneDNN's operators for this are private to PyTorch. On processors for which they have no
fast code they are thousands of times slower, and on those without 8-bit products their sums overflow. So they are used
only after a check of numbers and speed.
"""

import time
from collections.abc import Callable
from functools import cache

import torch
from torch import Tensor

from onebert_encoder.compute.kernels.native import NativeKernels, load_native
from onebert_encoder.compute.linear import FrozenLinear
from onebert_store.errors import InvalidSettings

# Largest time relative to bfloat16's product. Half is usual; without fast code it is thousands of times as long.
_SLOWEST = 10.0
_LARGEST, _ZERO = 127, 128


class Int8Linear:
    """`y = x Wᵀ` without gradients; a token's bits do not depend on other tokens, since integer sums do not round.

    Args:
        weight: [out, in], float32.

    Raises:
        InvalidSettings: this machine cannot compute int8 products, or not fast.
    """

    def __init__(self, weight: Tensor) -> None:
        self._kernels = _checked(weight.device.type)
        self._product = _Product(weight)

    def __call__(self, x: Tensor) -> Tensor:
        """[tokens, in] -> [tokens, out], both bfloat16 and contiguous.

        Raises:
            RuntimeError: `x` requires a gradient.
        """
        if torch.is_grad_enabled() and x.requires_grad:
            raise RuntimeError("int8 products have no gradient")
        return _linear(self._kernels, self._product, x)


class _Product:
    """W (q - 128) in bfloat16 for q [tokens, in] uint8; `dequantize` makes W x of it with `sums`, of the rows of W."""

    def __init__(self, weight: Tensor) -> None:
        weight = weight.detach()
        self._scale = weight.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / _LARGEST
        quantized = (weight / self._scale[:, None]).round()
        self.sums = quantized.sum(dim=1) * self._scale
        self._bias = -_ZERO * self.sums
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)
        self._packed = torch.ops.onednn.qlinear_prepack(quantized.to(torch.int8), None)

    def __call__(self, q: Tensor) -> Tensor:
        weight = (self._packed, self._scale, self._zeros, self._bias)
        y: Tensor = torch.ops.onednn.qlinear_pointwise(q, 1.0, 0, *weight, 1.0, 0, torch.bfloat16, "none", [], "")
        return y


def _linear(kernels: NativeKernels, product: _Product, x: Tensor) -> Tensor:
    q, ranges = kernels.quantize(x)
    return kernels.dequantize(product(q), ranges, product.sums)


@cache
def _checked(device: str) -> NativeKernels:
    """The kernels that quantize and dequantize, after a check that int8 products work on this machine.

    Raises:
        InvalidSettings: they do not work, or are slow.
    """
    if device != "cpu":
        raise InvalidSettings("int8 is computed on the CPU only")
    kernels = load_native(device, torch.bfloat16)
    if kernels is None:
        raise InvalidSettings("int8 needs the fast CPU kernels, and they need a C++ compiler (GCC 10 or later)")
    try:
        right, slower = _matches_plain(kernels), _slower(kernels)
    except (AttributeError, RuntimeError):
        raise InvalidSettings("int8 is not offered by this version of PyTorch for this processor") from None
    if not right:
        raise InvalidSettings("int8 products give wrong numbers on this machine")
    if slower > _SLOWEST:
        raise InvalidSettings(f"int8 products take {slower:.0f} times as long as bfloat16's on this machine")
    return kernels


def _sample() -> tuple[Tensor, Tensor]:
    """x [256, 256] and W [320, 256]; the last row of each is constant, which makes the largest integer sums."""
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, 256, generator=generator) for rows in (256, 320))
    x[-1] = weight[-1] = 1
    return x.to(torch.bfloat16), weight


@torch.no_grad()
def _matches_plain(kernels: NativeKernels) -> bool:
    """Whether a small product is right, and a token has the same bits in it as alone."""
    x, weight = _sample()
    product = _Product(weight)
    got = _linear(kernels, product, x)
    alone = torch.cat([_linear(kernels, product, row) for row in x[-3:].split(1)])
    # Sums of 256 products of order 1, whose factors are off by up to 0.014: the error usually is 0.2, and 16 where the
    # layout is wrong.
    return torch.allclose(got.float(), x.float() @ weight.T, rtol=0.02, atol=1.5) and torch.equal(got[-3:], alone)


@torch.no_grad()
def _slower(kernels: NativeKernels) -> float:
    """How many times slower the int8 product is than bfloat16's, by the best of six runs each."""
    x, weight = _sample()
    product, usual = _Product(weight), FrozenLinear(lambda: weight.to(torch.bfloat16))
    times = [(_seconds(lambda: _linear(kernels, product, x)), _seconds(lambda: usual(x))) for _ in range(6)]
    return min(own for own, _ in times) / min(others for _, others in times)


def _seconds(run: Callable[[], object]) -> float:
    started = time.perf_counter()
    run()
    return time.perf_counter() - started
