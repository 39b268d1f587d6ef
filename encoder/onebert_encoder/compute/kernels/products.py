"""Matrix products with frozen weights in this CPU's instructions; used only after a check of their results."""

import ctypes
import logging
from dataclasses import dataclass
from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.compute.kernels.forward import Weight
from onebert_encoder.compute.kernels.library import INT, POINTER, find_library, functions_of

logger = logging.getLogger("onebert.kernels")

# Outputs of the widest panel, for which memory is taken, and bytes of the inputs that one instruction multiplies
# (tiles.h).
PANEL, GROUP_BYTES = 32, 4
# Bytes that are prefetched beyond the end of a packed weight, but not used.
FETCHED_AHEAD = 16384

_NAMES = {torch.float32: "f32", torch.bfloat16: "bf16", torch.int8: "int8"}
_SIGNATURES = {
    "pack": (POINTER, INT, INT, POINTER),
    "product": (POINTER, INT, INT, POINTER, INT, POINTER, INT),
    "forward": (POINTER, POINTER),
}
_LARGEST = 127


@dataclass(frozen=True)
class Packed:
    """A weight W [out, in] in the layout of the products.

    Attributes:
        numbers: W by panels.
        scale: [out, filled up to whole panels of PANEL] float32, each output's scale; None unless int8.
        sums: as `scale`, the sum of each output's weights; None unless int8.
        shape: (out, in), with `in` padded by zeros to a multiple of one instruction's inputs.
    """

    numbers: Tensor
    scale: Tensor | None
    sums: Tensor | None
    shape: tuple[int, int]

    @property
    def struct(self) -> Weight:
        """Its addresses, valid while this object lives."""
        return Weight(*(None if x is None else x.data_ptr() for x in (self.numbers, self.scale, self.sums)))


class NativeProducts:
    """Products in one precision; a token's bits do not depend on other tokens. int8 rounds bfloat16 tokens."""

    def __init__(self, library: ctypes.CDLL, precision: torch.dtype) -> None:
        self._precision = precision
        functions = functions_of(library, _SIGNATURES, f"{{}}_{_NAMES[precision]}")
        self._pack, self._product, self.forward = functions.values()

    def pack(self, weight: Tensor) -> Packed:
        if self._precision == torch.int8:
            return self._pack_integers(weight)
        return self._packed(weight.to(self._precision), None, None)

    def multiply(self, x: Tensor, packed: Packed) -> Tensor:
        """x Wᵀ: [tokens, in] -> [tokens, out], contiguous and in the precision (bfloat16 for int8)."""
        out, into = packed.shape
        if x.shape[1] < into:
            x = F.pad(x, (0, into - x.shape[1]))
        y, weight = x.new_empty(len(x), out), packed.struct
        self._product(x.data_ptr(), len(x), into, ctypes.byref(weight), out, y.data_ptr(), torch.get_num_threads())
        return y

    def unpack(self, packed: Packed) -> Tensor:
        """W [out, in] of a packed float32 weight: its panels are [in][outputs of a panel]."""
        out, into = packed.shape
        # The second number of the only output lies behind the first number of each output.
        panel = int(self._packed(torch.tensor([[0.0, 1.0]]), None, None).numbers.argmax())
        panels = packed.numbers[: -(-out // panel) * panel * into].view(-1, into, panel)
        return panels.transpose(1, 2).flatten(0, 1)[:out].contiguous()

    def _pack_integers(self, weight: Tensor) -> Packed:
        weight = weight.detach().float()
        scale = weight.abs().amax(dim=1).clamp_min(torch.finfo(torch.float32).tiny) / _LARGEST
        integers = (weight / scale[:, None]).round()
        filling = (0, -len(weight) % PANEL)
        return self._packed(integers.to(torch.int8), F.pad(scale, filling), F.pad(integers.sum(dim=1) * scale, filling))

    def _packed(self, weight: Tensor, scale: Tensor | None, sums: Tensor | None) -> Packed:
        # One instruction multiplies a group of inputs.
        weight = F.pad(weight.detach(), (0, -weight.shape[1] % (GROUP_BYTES // weight.itemsize))).contiguous()
        out, into = weight.shape
        panels = -(-out // PANEL)
        numbers = torch.zeros(panels * PANEL * into + FETCHED_AHEAD // weight.itemsize, dtype=weight.dtype)
        self._pack(weight.data_ptr(), out, into, numbers.data_ptr())
        return Packed(numbers, scale, sums, (out, into))


@cache
def load_products(device: str, precision: torch.dtype) -> NativeProducts | None:
    """The products in a precision; None, with a warning in the log, if they cannot be built or are wrong."""
    if device != "cpu" or precision not in _NAMES or (library := find_library()) is None:
        return None
    products = NativeProducts(library, precision)
    if not (right := _matches_plain(products, precision)):
        logger.warning("the fast CPU products give wrong numbers on this machine, so plain PyTorch is used")
    return products if right else None


@torch.no_grad()
def _matches_plain(products: NativeProducts, precision: torch.dtype) -> bool:
    generator = torch.Generator().manual_seed(0)
    x, weight = (torch.randn(rows, 256, generator=generator) for rows in (45, 72))
    # Constant rows make the largest integer sums, which overflow without the right instructions.
    x[-1] = weight[-1] = 1
    x = x.to(torch.bfloat16 if precision == torch.int8 else precision)
    packed = products.pack(weight)
    got = products.multiply(x, packed)
    alone = torch.cat([products.multiply(row, packed) for row in x.split(1)])
    # Sums of 256 products of order 1. In 8 bits each factor is off by up to 0.014 of its own, which usually makes 0.2;
    # a wrong layout makes 16.
    rtol, atol = {torch.float32: (0, 1e-3), torch.bfloat16: (0.02, 0.5), torch.int8: (0.02, 1.5)}[precision]
    right = torch.allclose(got.float(), x.float() @ weight.T, rtol=rtol, atol=atol) and torch.equal(got, alone)
    return right and (precision != torch.float32 or torch.equal(products.unpack(packed), weight))
