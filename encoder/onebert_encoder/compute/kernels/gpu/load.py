"""Loads the GPU kernels, once they have agreed with the plain ones on this machine."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import torch

from onebert_encoder.compute.kernels.check import drops_its_share, learns_as_plain, matches_plain
from onebert_encoder.compute.kernels.gpu.kernels import GpuKernels
from onebert_encoder.compute.kernels.gpu.training import GpuTraining

T = TypeVar("T")

logger = logging.getLogger("onebert.kernels")


@dataclass(frozen=True)
class Shape:
    """The shape of a base with which kernels are checked."""

    device: torch.device
    dtype: torch.dtype
    hidden: int
    num_heads: int
    intermediate: int


@cache
def load_gpu(shape: Shape) -> GpuKernels | None:
    """The kernels for answers; None, with a warning, if they do not run or give wrong numbers."""
    sizes = shape.hidden, shape.num_heads, shape.intermediate
    return _checked(GpuKernels, lambda kernels: matches_plain(kernels, shape.device, shape.dtype, *sizes))


@cache
def load_gpu_training(shape: Shape) -> type[GpuTraining] | None:
    """The kernels for training, as `load_gpu`."""

    def make() -> type[GpuTraining]:
        from onebert_encoder.compute.kernels.gpu import backward  # noqa: F401, PLC0415 - is Triton here?

        return GpuTraining

    def is_right(kernels: type[GpuTraining]) -> bool:
        head_size = shape.hidden // shape.num_heads
        learns = learns_as_plain(kernels, shape.dtype, shape.device, 0.0, head_size)
        return learns and drops_its_share(kernels, shape.dtype, shape.device, 2 * head_size)

    return _checked(make, is_right)


def _checked(make: Callable[[], T], is_right: Callable[[T], bool]) -> T | None:
    try:
        kernels = make()
        if is_right(kernels):
            return kernels
        logger.warning("the fast GPU kernels give wrong numbers on this machine, so plain PyTorch is used")
    except ImportError:
        logger.warning("Triton is not installed, so plain PyTorch is used")
    except Exception as error:  # Triton's compilers and drivers may raise anything
        logger.warning("the fast GPU kernels do not run (%s), so plain PyTorch is used", type(error).__name__)
    return None
