"""DeBERTa's disentangled attention (He et al. 2021, equation 4): the scores of contents and of relative positions."""

from collections.abc import Iterator, Sequence
from itertools import groupby

import torch
from torch import Tensor

from onebert_encoder.compute.scores import RowScores, Scores


def score_name(layer: int, part: str, kind: str) -> str:
    """The name in `RowScores` of a row's numbers for one map of one layer."""
    return f"{layer}.{part}.{kind}"


class Disentangled(Scores):
    """(q kᵀ + q pkᵀ + k pqᵀ) / √(3 d), each product with the positions read at the distance of query and key.

    A row's tables are (table + left right + bias) ∘ scale, by `score_name`; a row has those kinds that it needs.

    Attributes:
        tables: `k` pk and `q` pq, [positions, h] float32, divided by √d and √(3 d): `turn` divides queries by √3.
        of_distance: [2 max_length - 1] int64 on the CPU, the row of both tables for the distance of a query from a key,
            ascending, for sequences of at most `max_length` tokens.
    """

    def __init__(self, layer: int, pq: Tensor, pk: Tensor, of_distance: Tensor) -> None:
        self.layer, self.tables, self.of_distance = layer, {"q": pq, "k": pk}, of_distance

    def turn(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q * 3**-0.5, k

    def added(self, q: Tensor, k: Tensor, by_row: Sequence[RowScores]) -> Tensor:
        length, max_length = q.shape[2], len(self.of_distance) // 2 + 1
        used = self.of_distance[max_length - length : max_length + length - 1]
        low, high = int(used[0]), int(used[-1]) + 1
        at = torch.arange(length)
        index = (used[at[:, None] - at + length - 1] - low).to(q.device).expand(*q.shape[:3], length)
        of_q = self._products(q, "k", slice(low, high), by_row).gather(-1, index)
        of_k = self._products(k, "q", slice(low, high), by_row).gather(-1, index.mT)
        return of_q + of_k.mT

    def _products(self, x: Tensor, part: str, used: slice, by_row: Sequence[RowScores]) -> Tensor:
        """[sequences, heads, tokens, positions], the products of `x` with the rows `used` of each sequence's table."""
        runs = self._runs(part, by_row, len(x))
        parts = [x[low:high] @ self._by_head(part, scores, used, x).mT for low, high, scores in runs]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _runs(self, part: str, by_row: Sequence[RowScores], count: int) -> Iterator[tuple[int, int, RowScores]]:
        """Neighboring sequences (first, behind the last) with one table, and its numbers."""
        start = f"{self.layer}.{part}."
        scores = [row if any(name.startswith(start) for name in row) else {} for row in by_row] or [{}] * count
        for _, run in groupby(range(count), key=lambda i: id(scores[i]) if scores[i] else 0):
            low, *_, last = [*run] * 2
            yield low, last + 1, scores[low]

    def _by_head(self, part: str, scores: RowScores, used: slice, x: Tensor) -> Tensor:
        """[heads, positions, d], in the dtype of `x`."""
        table = self.tables[part][used]
        if (left := scores.get(score_name(self.layer, part, "left"))) is not None:
            table = table + left[used] @ scores[score_name(self.layer, part, "right")]
        if (difference := scores.get(score_name(self.layer, part, "difference"))) is not None:
            table = table + difference[used]
        if (bias := scores.get(score_name(self.layer, part, "bias"))) is not None:
            table = table + bias
        if (scale := scores.get(score_name(self.layer, part, "scale"))) is not None:
            table = table * scale
        return table.to(x.dtype).view(len(table), x.shape[1], x.shape[3]).transpose(0, 1)
