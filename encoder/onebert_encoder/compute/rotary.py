"""Rotary positions (RoPE, Su et al. 2021) and local attention: the scores of ModernBERT and its kin."""

from collections.abc import Sequence
from functools import cache

import torch
from torch import Tensor

from onebert_encoder.compute.scores import Own, Scores
from onebert_encoder.layout.stage import Stage


class Rotary(Scores):
    """Turns queries and keys by angles that grow with their positions.

    The first half of a head's numbers is turned with the second half, pair by pair.

    Attributes:
        cos, sin: [positions, d / 2] float32, on the CPU.
        window: the largest distance of tokens that attend to each other; 0 for any.
    """

    def __init__(self, theta: float, window: int, head_width: int, positions: int) -> None:
        self.theta, self.window = theta, window
        self.cos, self.sin = _tables(theta, head_width, positions)

    def turn(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        cos, sin = (table[: q.shape[2]].to(q.device) for table in (self.cos, self.sin))
        return _turned(q, cos, sin), _turned(k, cos, sin)

    def added(self, q: Tensor, k: Tensor, own: Sequence[Own]) -> Tensor | None:
        length = q.shape[2]
        if not 0 < self.window < length - 1:
            return None
        at = torch.arange(length, device=q.device)
        far = (at[:, None] - at).abs() > self.window
        # Finite: minus infinity everywhere would make a NaN of the padding's queries, and of all gradients.
        return q.new_zeros(length, length).masked_fill_(far, torch.finfo(q.dtype).min / 2)


def turn_tokens(scores: Rotary, qkv: Tensor, b: Tensor, stage: Stage, num_heads: int) -> Tensor:
    """`qkv` [tokens, 3h] with the biases of queries and keys, `b` [rows, 2h], added and both turned."""
    both, v = qkv.split([b.shape[1], qkv.shape[1] - b.shape[1]], dim=1)
    both = (both + b.index_select(0, stage.row_of_token)).view(len(qkv), 2 * num_heads, -1)
    cos, sin = (table[stage.positions][:, None] for table in (scores.cos, scores.sin))
    return torch.cat([_turned(both, cos, sin).flatten(1), v], dim=1)


@cache
def _tables(theta: float, head_width: int, positions: int) -> tuple[Tensor, Tensor]:
    """Cosines and sines, shared by all layers with these values."""
    with torch.inference_mode(False):
        frequencies = 1.0 / theta ** (torch.arange(0, head_width, 2).float() / head_width)
        angles = torch.arange(positions).float()[:, None] * frequencies
        return angles.cos(), angles.sin()


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """In float32: a rounded angle of a far position is another position."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
