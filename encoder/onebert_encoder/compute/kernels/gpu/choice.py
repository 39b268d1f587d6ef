"""Checks the GPU kernels at start, and picks the fastest of several implementations ("ways")."""

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache, partial
from itertools import pairwise
from statistics import median

import torch
from torch import Tensor

from onebert_encoder.compute.kernels.check import TOLERANCE, matches_plain
from onebert_encoder.compute.kernels.gpu.attention import Attention, TritonAttention, VarlenAttention
from onebert_encoder.compute.kernels.gpu.kernels import GpuKernels
from onebert_encoder.layout.stage import Stage, stage_of

logger = logging.getLogger("onebert.kernels")

Way = Callable[[], Tensor]
"""Computes; may raise any error of compilers and drivers."""

# Timed calls, after the same number of untimed ones: programs compile, libraries choose, clocks rise.
_CALLS = 10

# Another way replaces the first only if it takes at most this share of its time; smaller gains may not repeat.
_WORTH_IT = 0.97


# The batch of the comparison: sequences, tokens of each.
_COMPARED = (64, 128)

_ATTENTIONS: Mapping[str, Callable[[GpuKernels], Attention]] = {
    "triton": lambda kernels: TritonAttention(kernels.programs),
    "varlen": lambda kernels: VarlenAttention(kernels.programs),
}


@dataclass(frozen=True)
class Choice:
    """The chosen way; `tried` has each way's milliseconds, or the reason why it cannot be used."""

    name: str
    tried: Mapping[str, float | str]

    def __str__(self) -> str:
        found = (
            f"{name} {tried if isinstance(tried, str) else f'{tried:.3g} ms'}" for name, tried in self.tried.items()
        )
        return f"{self.name} ({', '.join(found)})"


def choose(ways: Mapping[str, Callable[[], Way]], tolerance: float, milliseconds: Callable[[Way], float]) -> Choice:
    """The fastest of `ways` that agrees with the first, which must work; the first if no other is clearly faster."""
    tried: dict[str, float | str] = {}
    wanted: Tensor | None = None
    for name, made in ways.items():
        try:
            way = made()
            got = way().float()
            if wanted is not None and not torch.allclose(got, wanted, rtol=tolerance, atol=tolerance):
                tried[name] = "gives other numbers"
                continue
            wanted = got if wanted is None else wanted
            tried[name] = milliseconds(way)
        except Exception as error:
            if wanted is None:
                raise
            tried[name] = f"does not run ({type(error).__name__})"
    times = {name: taken for name, taken in tried.items() if not isinstance(taken, str)}
    first = next(iter(times))
    best = min(times, key=times.__getitem__)
    return Choice(best if times[best] <= _WORTH_IT * times[first] else first, tried)


def device_milliseconds(way: Way) -> float:
    """Median milliseconds of one call on the GPU's clock, among calls launched back to back."""
    for _ in range(_CALLS):
        way()
    marks = [torch.cuda.Event(enable_timing=True) for _ in range(_CALLS + 1)]
    marks[0].record()
    for mark in marks[1:]:
        way()
        mark.record()
    marks[-1].synchronize()
    return float(median(before.elapsed_time(after) for before, after in pairwise(marks)))


@dataclass(frozen=True)
class Shape:
    """The shape of a base, which kernels are chosen for."""

    device: torch.device
    dtype: torch.dtype
    hidden: int
    num_heads: int
    intermediate: int


@cache
def load_gpu(shape: Shape, batch_invariant: bool) -> GpuKernels | None:
    """The kernels for one shape, in the fastest ways unless `batch_invariant`; None, with a warning, if they fail."""
    try:
        kernels = GpuKernels()
        right = _is_right(kernels, shape)
        if right and shape.device.type == "cuda" and not batch_invariant:
            choose_ways(kernels, shape, TOLERANCE[shape.dtype], device_milliseconds)
            # The comparison used texts of one length only; check others.
            kernels = kernels if _is_right(kernels, shape) else GpuKernels()
    except ImportError:
        logger.warning("Triton is not installed, so plain PyTorch is used")
        return None
    except Exception as error:  # Triton's compilers and drivers may raise anything
        logger.warning("the fast GPU kernels do not run (%s), so plain PyTorch is used", type(error).__name__)
        return None
    if not right:
        logger.warning("the fast GPU kernels give wrong numbers on this machine, so plain PyTorch is used")
    return kernels if right else None


def _is_right(kernels: GpuKernels, shape: Shape) -> bool:
    return matches_plain(kernels, shape.device, shape.dtype, shape.hidden, shape.num_heads)


@torch.inference_mode()
def choose_ways(
    kernels: GpuKernels,
    shape: Shape,
    tolerance: float,
    milliseconds: Callable[[Way], float],
    compared: tuple[int, int] = _COMPARED,
) -> None:
    """Sets `kernels` to the fastest ways, and logs the timings."""
    ways = {name: partial(_attention, kernels, made, shape, *compared) for name, made in _ATTENTIONS.items()}
    attention = choose(ways, tolerance, milliseconds)
    logger.info("attention: %s", attention)
    kernels.attention = _ATTENTIONS[attention.name](kernels)


def _attention(
    kernels: GpuKernels, made: Callable[[GpuKernels], Attention], shape: Shape, count: int, length: int
) -> Way:
    attention, stage = made(kernels), _stage(shape, count, length)
    # New for each way, since some add to the queries.
    qkv, b_q = _drawn(shape, count * length, 3 * shape.hidden), _drawn(shape, count, shape.hidden)
    return lambda: attention(qkv, b_q, stage, shape.num_heads)


def _stage(shape: Shape, count: int, length: int) -> Stage:
    return stage_of([length] * count, range(count), 0, shape.dtype, shape.device)


def _drawn(shape: Shape, rows: int, width: int) -> Tensor:
    return torch.randn(rows, width, generator=torch.Generator().manual_seed(rows)).to(shape.device, shape.dtype)
