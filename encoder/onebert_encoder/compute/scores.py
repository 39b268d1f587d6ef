"""The part of attention between queries, keys and softmax: plain, by distances, or with rotary positions (RoPE)."""

from collections.abc import Mapping, Sequence
from functools import cache

import torch
from torch import Tensor

from onebert_encoder.layout.stage import Stage

RowScores = Mapping[str, Tensor]
"""One row's numbers for the scores of its layers, as the base's kind of scores names them; empty if it has none."""


class Scores:
    """The plain scores of one layer, q kᵀ / √d; subclasses turn queries and keys, or add to their products.

    `q` and `k` are [sequences, heads, tokens, d], sequences padded at their end; `by_row` has each one's `RowScores`.
    """

    def turn(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    def added(self, q: Tensor, k: Tensor, by_row: Sequence[RowScores]) -> Tensor | None:
        """Numbers to add to the scaled products, broadcast to [sequences, heads, tokens, tokens]; None for zeros."""
        return None


PLAIN_SCORES = Scores()

FILLING = 32
"""Numbers behind those of a head that compiled code may read, and does not use."""


class ByDistance(Scores):
    """Adds a number for each head and each distance of two tokens.

    Attributes:
        table: [heads, 2 max_length - 1 + FILLING] float32, entry i - j + max_length - 1 for query i and key j, then
            zeros; a row has `distances` instead.
        max_length: tokens of the longest sequence.
    """

    def __init__(self, table: Tensor) -> None:
        self.table, self.max_length = table, (table.shape[1] - FILLING + 1) // 2

    def of_row(self, scores: RowScores) -> Tensor:
        return scores.get("distances", self.table)

    def added(self, q: Tensor, k: Tensor, by_row: Sequence[RowScores]) -> Tensor:
        length = q.shape[2]
        at = torch.arange(length, device=q.device)
        index = at[:, None] - at + self.max_length - 1
        tables = {id(table): table for table in map(self.of_row, by_row)}
        added = {key: table[:, index].to(q.dtype) for key, table in tables.items()}
        if len(added) == 1:
            return next(iter(added.values()))
        return torch.stack([added[id(self.of_row(scores))] for scores in by_row])


class Rotary(Scores):
    """Turns queries and keys by angles that grow with their positions (RoPE, Su et al. 2021), as ModernBERT does.

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

    def added(self, q: Tensor, k: Tensor, by_row: Sequence[RowScores]) -> Tensor | None:
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
    with torch.inference_mode(False):
        frequencies = 1.0 / theta ** (torch.arange(0, head_width, 2).float() / head_width)
        angles = torch.arange(positions).float()[:, None] * frequencies
        return angles.cos(), angles.sin()


def _turned(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """In float32: a rounded angle of a far position is another position."""
    first, second = x.float().chunk(2, dim=-1)
    return torch.cat([first * cos - second * sin, second * cos + first * sin], dim=-1).to(x.dtype)
