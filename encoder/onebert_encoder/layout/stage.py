"""One packing of tokens, as kernels read it: sequences, and the row of each token."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.layout.upload import Array, upload

CPU = torch.device("cpu")


@dataclass(frozen=True)
class Bucket:
    """Sequences of similar length: tokens `start:stop` of the stage.

    Attributes:
        length: tokens of the longest sequence, to which attention pads.
        slots: [tokens], index of each token in the padded [count * length]; None if all have equal length.
        mask: [count, 1, 1, length], 0 for tokens and -inf for padding; None if all have equal length.
        rows: [count], row of each sequence; sequences of one row are neighbors.
        lengths: [count], tokens of each sequence.
    """

    start: int
    stop: int
    count: int
    length: int
    slots: Tensor | None
    mask: Tensor | None
    rows: Array
    lengths: Array


@dataclass(frozen=True)
class Stage:
    """One packing of tokens for a range of layers.

    Attributes:
        source: [tokens], index of each token in the previous stage. None in the first stage, unless the batch starts
            above the embeddings: then the index into its activations, end to end in the caller's order.
        filling: number of tokens at the end that belong to no sequence.
        row_of_token: [tokens], index into `Rows`; 0 for the filling.
        spans: [spans, 3], (row, start, stop) of neighboring tokens with the same row; the filling last.
        edges: [sequences + 1] int32, start of each sequence; the last entry is the start of the filling.
        rows: [sequences], row of each sequence.
        lengths: [sequences], tokens of each sequence.
    """

    layers: range
    source: Tensor | None
    filling: int
    row_of_token: Tensor
    spans: Array
    edges: Tensor
    rows: Array
    lengths: Array
    dtype: torch.dtype

    def of_token(self, of_row: Array) -> list[Array | None]:
        """[tokens] for each column of `of_row` [rows, columns], the number of each token's row; None if all are 0."""
        rows, starts, stops = self.spans.T
        of_span = of_row[rows]
        used = of_span.any(axis=0).tolist()
        return [of_span[:, i].repeat(stops - starts) if used[i] else None for i in range(len(used))]

    @cached_property
    def positions(self) -> Tensor:
        """[tokens], the position of each token in its sequence, on the CPU; 0 for the filling."""
        starts = np.cumsum(self.lengths) - self.lengths
        positions = np.arange(self.lengths.sum()) - np.repeat(starts, self.lengths)
        return torch.from_numpy(np.concatenate([positions, np.zeros(self.filling, dtype=positions.dtype)]))

    @cached_property
    def buckets(self) -> list[Bucket]:
        """The sequences by length class; built on first use, since only the plain kernels pad."""
        edges = np.flatnonzero(np.diff(length_classes(self.lengths))) + 1
        return [self._bucket(low, high) for low, high in pairwise([0, *edges.tolist(), len(self.lengths)])]

    @cached_property
    def alone(self) -> list[Bucket]:
        """Each sequence in a bucket of its own."""
        return [self._bucket(i, i + 1) for i in range(len(self.lengths))]

    def _bucket(self, low: int, high: int) -> Bucket:
        lengths = self.lengths[low:high]
        count, longest = high - low, int(lengths.max())
        start, tokens = int(self.lengths[:low].sum()), int(lengths.sum())
        extent = (start, start + tokens, count, longest)
        of_sequences = (self.rows[low:high], lengths)
        if count * longest == tokens:
            return Bucket(*extent, None, None, *of_sequences)
        present = np.arange(longest) < lengths[:, None]
        mask = np.where(present, np.float32(0), np.float32("-inf"))[:, None, None]
        on_device = upload({"slots": np.flatnonzero(present), "mask": mask}, self.row_of_token.device)
        return Bucket(*extent, on_device["slots"], on_device["mask"].to(self.dtype), *of_sequences)


def stage_of(
    lengths: Sequence[int], rows: Sequence[int], filling: int, dtype: torch.dtype, device: torch.device = CPU
) -> Stage:
    """A stage of one layer alone: sequences end to end, each with its row, and filling behind them."""
    edges, of_token = np.cumsum([0, *lengths]).tolist(), np.repeat([*rows, 0], [*lengths, filling])
    tensors = upload({"row_of_token": of_token, "edges": np.array(edges, dtype=np.int32)}, device)
    spans = [(row, start, stop) for row, (start, stop) in zip(rows, pairwise(edges), strict=True)]
    spans += [(0, edges[-1], edges[-1] + filling)] * bool(filling)
    sequences = (np.array(rows), np.array(lengths))
    return Stage(range(1), None, filling, tensors["row_of_token"], np.array(spans), tensors["edges"], *sequences, dtype)


def length_classes(lengths: Array) -> Array:
    """The number of each length's class: up to 16 tokens, 32, 64, 128, ..."""
    # The exponent that `frexp` returns is the number of bits.
    return np.asarray(np.frexp(np.maximum(lengths - 1, 15))[1])
