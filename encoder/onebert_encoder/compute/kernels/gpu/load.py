"""Loads the GPU kernels, once they have agreed with the plain ones on this machine."""

import logging
from dataclasses import dataclass
from functools import cache

import torch

from onebert_encoder.compute.kernels.check import matches_plain
from onebert_encoder.compute.kernels.gpu.kernels import GpuKernels

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
    try:
        kernels = GpuKernels()
        if matches_plain(kernels, shape.device, shape.dtype, shape.hidden, shape.num_heads, shape.intermediate):
            return kernels
        logger.warning("the fast GPU kernels give wrong numbers on this machine, so plain PyTorch is used")
    except ImportError:
        logger.warning("Triton is not installed, so plain PyTorch is used")
    except Exception as error:  # Triton's compilers and drivers may raise anything
        logger.warning("the fast GPU kernels do not run (%s), so plain PyTorch is used", type(error).__name__)
    return None
