"""Stages, branches and random numbers of any shape: what kernels are tested on, and where they must work."""

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from onebert_encoder.layout.branches import Bottleneck, Branch, Core, Directions, LowRank, Sparse

WITH_KERNELS = sys.platform == "linux" and shutil.which("g++") is not None

needs_kernels = pytest.mark.skipif(not WITH_KERNELS, reason="the C++ kernels are for Linux with GCC")
"""Elsewhere plain kernels answer; where this does not skip, kernels that cannot be built fail the test."""

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
"""For tests of GPU kernels: Triton's interpreter runs them without a GPU, and has no bfloat16 in matrix products."""
HALF = torch.float16 if DEVICE == "cpu" else torch.bfloat16


def draw(*shape: int, dtype: torch.dtype, seed: int = 0, device: str = "cpu") -> Tensor:
    """Normally distributed numbers, the same on every device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(device, dtype)


def low_rank(rank: int, into: int, out: int, dtype: torch.dtype, seed: int, device: str = "cpu") -> LowRank:
    A = draw(rank, into, dtype=torch.float32, seed=seed, device=device)
    B = draw(out, rank, dtype=torch.float32, seed=seed + 1, device=device)
    return LowRank(A / into**0.5, B / rank**0.5).to(dtype)


def sparse(entries: int, into: int, out: int, dtype: torch.dtype, seed: int) -> Sparse:
    drawn = torch.randperm(into * out, generator=torch.Generator().manual_seed(seed))[:entries].sort().values
    return Sparse(torch.stack([drawn // into, drawn % into]), draw(len(drawn), dtype=dtype, seed=seed), (out, into))


def bottleneck(rank: int, width: int, dtype: torch.dtype, seed: int, device: str = "cpu") -> Bottleneck:
    down = draw(rank, width, dtype=torch.float32, seed=seed, device=device)
    c = draw(rank, dtype=torch.float32, seed=seed, device=device)
    return Bottleneck(down / width**0.5, c, down.T / rank**0.5).to(dtype)


def directions(rank: int, into: int, out: int, dtype: torch.dtype, seed: int, device: str = "cpu") -> Directions:
    down = draw(rank, into, dtype=torch.float32, seed=seed, device=device)
    up = draw(rank, out, dtype=torch.float32, seed=seed + 1, device=device)
    return Directions(down / into**0.5, up.T / rank**0.5).to(dtype)


def exact(branch: Branch, x: Tensor) -> Tensor:
    """[tokens, out] in float64, by a dense matrix."""
    x = x.double()
    if isinstance(branch, Core):
        rank = len(branch.R)
        up, down = branch.shared.up[:, :rank].double(), branch.shared.down[:rank].double()
        return x @ (up @ branch.R.double() @ down).T
    if isinstance(branch, LowRank):
        return x @ (branch.B.double() @ branch.A.double()).T
    if isinstance(branch, Sparse):
        dense = torch.zeros(branch.shape, dtype=torch.float64, device=x.device)
        dense[branch.indices[0], branch.indices[1]] = branch.values.double()
        return x @ dense.T
    z = x @ branch.D.double().T + branch.c.double()
    return z * torch.special.ndtr(z) @ branch.U.double().T


@contextmanager
def anew(*loading: Any) -> Iterator[None]:
    """These cached functions load what they load anew in the block, and again behind it."""
    for cached in loading:
        cached.cache_clear()
    try:
        yield
    finally:
        for cached in loading:
            cached.cache_clear()
