"""Stages of any shape, and random numbers to fill them: what kernels are tested on."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.batch import Stage


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
