"""Stages, branches and random numbers of any shape: what kernels are tested on, and where they must work."""

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from onebert_encoder.layout.branches import Bottleneck, LowRank, Sparse
from onebert_encoder.layout.directions import Directions
from onebert_encoder.layout.stage import Stage

WITH_KERNELS = sys.platform == "linux" and shutil.which("g++") is not None

needs_kernels = pytest.mark.skipif(not WITH_KERNELS, reason="the C++ kernels are for Linux with GCC")
"""Elsewhere plain kernels answer; where this does not skip, kernels that cannot be built fail the test."""

needs_int8 = pytest.mark.skipif(
    not (WITH_KERNELS and "vnni" in Path("/proc/cpuinfo").read_text(encoding="utf-8")),
    reason="int8 is for processors with VNNI, and needs the C++ kernels",
)


def stage_of(
    lengths: Sequence[int], rows: Sequence[int], filling: int, dtype: torch.dtype, device: str = "cpu"
) -> Stage:
    """Sequences end to end, each with its row, and filling behind them."""
    of_token = torch.tensor([*np.repeat(rows, lengths), *[0] * filling], device=device)
    edges = torch.tensor([0, *np.cumsum(lengths)], dtype=torch.int32, device=device)
    return Stage(range(1), None, filling, of_token, [], edges, np.array(rows), np.array(lengths), dtype)


def draw(*shape: int, dtype: torch.dtype, seed: int = 0, device: str = "cpu") -> Tensor:
    """Normally distributed numbers, the same on every device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def low_rank(rank: int, into: int, out: int, dtype: torch.dtype, seed: int) -> LowRank:
    A, B = draw(rank, into, dtype=torch.float32, seed=seed), draw(out, rank, dtype=torch.float32, seed=seed + 1)
    return LowRank(A / into**0.5, B / rank**0.5).to(dtype)


def sparse(entries: int, into: int, out: int, dtype: torch.dtype, seed: int) -> Sparse:
    drawn = torch.randperm(into * out, generator=torch.Generator().manual_seed(seed))[:entries].sort().values
    return Sparse(torch.stack([drawn // into, drawn % into]), draw(len(drawn), dtype=dtype, seed=seed), (out, into))


def bottleneck(rank: int, width: int, dtype: torch.dtype, seed: int) -> Bottleneck:
    down, c = draw(rank, width, dtype=torch.float32, seed=seed), draw(rank, dtype=torch.float32, seed=seed)
    return Bottleneck(down / width**0.5, c, down.T / rank**0.5).to(dtype)


def directions(rank: int, into: int, out: int, dtype: torch.dtype, seed: int) -> Directions:
    down, up = draw(rank, into, dtype=torch.float32, seed=seed), draw(rank, out, dtype=torch.float32, seed=seed + 1)
    return Directions(down / into**0.5, up.T / rank**0.5).to(dtype)
