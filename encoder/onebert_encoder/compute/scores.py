"""The part of attention between queries, keys and softmax."""

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

Own = Mapping[str, Tensor]
"""One row's numbers for the scores of its layers, as the base's kind of scores names them; empty if it has none."""


class Scores:
    """The plain scores of one layer, q kᵀ / √d; subclasses turn queries and keys, or add to their products.

    `q` and `k` are [sequences, heads, tokens, d], sequences padded at their end; `own` has the row of each sequence.
    """

    def turn(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    def added(self, q: Tensor, k: Tensor, own: Sequence[Own]) -> Tensor | None:
        """Numbers to add to the scaled products, broadcast to [sequences, heads, tokens, tokens]; None for zeros."""
        return None


PLAIN_SCORES = Scores()

FILLING = 32
"""Numbers behind those of a head that compiled code may read, and does not use."""


class ByDistance(Scores):
    """Adds a number for each head and each distance of two tokens.

    Attributes:
        table: [heads, 2 most - 1 + FILLING] float32, entry i - j + most - 1 for query i and key j, then zeros; a row's
            own is `own["distances"]`.
        most: tokens of the longest sequence.
    """

    def __init__(self, table: Tensor) -> None:
        self.table, self.most = table, (table.shape[1] - FILLING + 1) // 2

    def of_row(self, own: Own) -> Tensor:
        return own.get("distances", self.table)

    def added(self, q: Tensor, k: Tensor, own: Sequence[Own]) -> Tensor:
        length = q.shape[2]
        at = torch.arange(length, device=q.device)
        index = at[:, None] - at + self.most - 1
        tables = {id(table): table for table in map(self.of_row, own)}
        added = {key: table[:, index].to(q.dtype) for key, table in tables.items()}
        if len(added) == 1:
            return next(iter(added.values()))
        return torch.stack([added[id(self.of_row(one))] for one in own])
