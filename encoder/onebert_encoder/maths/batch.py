"""Packing: sequences laid end to end, so that no linear layer ever sees a padding token.

Sequences are ordered by length bucket (powers of two), then by row: attention pads only inside a bucket, and one row's
tokens are contiguous, as branches need them. If one text is sent to several tasks (fan-out), the layers that their rows
do not change are computed once: the batch has several stages, and each stage takes its tokens from the one before.

Filling tokens round every stage up: matrix kernels are prepared per shape, and few shapes remain.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.layout.shapes import round_up
from onebert_encoder.layout.stage import Stage, length_classes
from onebert_encoder.layout.upload import Array, upload
from onebert_encoder.maths.sequences import Sequences, ids_of, segments_of
from onebert_encoder.text.tokens import SEGMENT_BITS

BASE_ROW = 0
"""The row of the bare base; a shared text runs on it up to the layer at which its tasks diverge."""


@dataclass(frozen=True)
class Batch:
    """Packed tokens of many sequences, each with its row.

    An input is one sequence, or two neighboring ones if each text of a pair is its own sequence. All attributes but
    `word`, `position` and `stages` are in the caller's order.

    Attributes:
        word: [tokens], token ids of the first stage.
        position: [tokens], index into the base's table of position plus segment embeddings, if it has one.
        rows: [sequences], row of each sequence.
        sequence: [sequences], index of each sequence in the last stage.
        first: [sequences], index of each sequence's first token in the last stage.
        lengths: [sequences], tokens of each sequence.
        inputs: [inputs], index of each input's first sequence.
        apart: compute heads and branches per sequence, so that a text has the same bits in every batch.
    """

    word: Tensor
    position: Tensor
    stages: list[Stage]
    rows: Array
    sequence: Array
    first: Array
    lengths: Array
    inputs: Array
    apart: bool

    def of_inputs(self, x: Tensor) -> list[Tensor]:
        """The tokens of each input, [its tokens, h]; a pair of two sequences is joined."""
        spans = zip(self.first.tolist(), self.lengths.tolist(), strict=True)
        sequences = [x[start : start + length] for start, length in spans]
        return [
            sequences[low] if high - low == 1 else torch.cat(sequences[low:high])
            for low, high in pairwise([*self.inputs.tolist(), len(sequences)])
        ]

    @property
    def computed_tokens(self) -> float:
        """Computed tokens, each stage weighted by its share of the layers; sharing texts lowers it."""
        first, last = self.stages[0], self.stages[-1]
        if first is last:
            return float(first.lengths.sum())
        tokens = sum(len(stage.layers) * int(stage.lengths.sum()) for stage in self.stages)
        return tokens / (last.layers.stop - first.layers.start)


_Index = tuple[str, int]
"""The name of an index array, and the number of the stage that reads it."""


def pack(
    base: Base,
    inputs: Sequences,
    rows: Array | Sequence[int],
    diverges_at: Array | Sequence[int] | None = None,
    layers: range | None = None,
) -> Batch:
    """Packs inputs for one `encode`.

    Args:
        rows: [inputs], the row of each input.
        diverges_at: [inputs], the lowest layer at which the input's row differs from row `BASE_ROW`; None shares
            nothing.
        layers: the layers to run; None is all. A batch that starts above layer 0 takes activations.
    """
    layers = range(base.config.num_layers) if layers is None else layers
    sequences, first = inputs.parts()
    rows = np.asarray(rows, dtype=np.int64)
    diverges = None if diverges_at is None else np.asarray(diverges_at)
    if sequences is not inputs:
        of_input = 1 + (inputs.second > 0)
        rows, diverges = rows.repeat(of_input), None if diverges is None else diverges.repeat(of_input)
    texts = _Texts(sequences)
    shared_until, lows = texts.shared_until(diverges), [layers.start]
    if shared_until is not None:
        lows = sorted({layers.start, *(low for low in set(shared_until.tolist()) if low in layers)})
    layouts: list[_Layout] = []
    arrays: dict[_Index, Array] = {}
    for low in lows:
        layout = _Layout(texts, rows if shared_until is None else np.where(shared_until <= low, rows, BASE_ROW))
        parents = layout.starts_in(layouts[-1]) if layouts else texts.starts[layout.members] if layers.start else None
        layout.put_indices(arrays, len(layouts), parents)
        layouts.append(layout)
    arrays["word", 0], arrays["position", 0] = _embedding_indices(base, texts, layouts[0])
    tensors = upload(arrays, base.device)
    edges = [*lows, layers.stop]
    return Batch(
        word=tensors["word", 0],
        position=tensors["position", 0],
        stages=[layout.stage(base, range(*edges[i : i + 2]), tensors, i) for i, layout in enumerate(layouts)],
        rows=rows,
        sequence=layouts[-1].place,
        first=layouts[-1].starts[layouts[-1].place],
        lengths=texts.lengths,
        inputs=first,
        apart=base.batch_invariant,
    )


class _Texts:
    """The sequences of a batch in the caller's order, and which of them are one text."""

    def __init__(self, sequences: Sequences) -> None:
        self.tokens, self._text = sequences.ids, sequences.text
        # The lengths count repetitions many times, which converts other numbers each time.
        self.lengths = np.asarray(sequences.lengths, dtype=np.int64)
        self.starts = self.lengths.cumsum() - self.lengths
        in_order = self._text.copy()
        in_order.sort()
        self._has_repeated = bool((in_order[1:] == in_order[:-1]).any())

    def shared_until(self, diverges_at: Array | None) -> Array | None:
        """The number of layers that each sequence runs as the bare base: 0 if its text occurs once; None if all do."""
        if diverges_at is None or not self._has_repeated:
            return None
        _, number, uses = np.unique(self._text, return_inverse=True, return_counts=True)
        return np.where(uses[number] > 1, diverges_at, 0)

    def first_alike(self, rows: Array) -> tuple[Array, Array]:
        """The first sequence of each text and row; and for each sequence the first one with its text and row."""
        if not self._has_repeated:
            every = np.arange(len(rows))
            return every, every
        _, number = np.unique(self._text, return_inverse=True)
        _, first, key = np.unique(number * (rows.max() + 1) + rows, return_index=True, return_inverse=True)
        return np.sort(first), first[key]


def _embedding_indices(base: Base, texts: _Texts, layout: "_Layout") -> tuple[Array, Array]:
    tokens = np.zeros(layout.total, dtype=np.int64)
    typed = tokens[: layout.num_tokens]
    starts = texts.starts[layout.members] - layout.starts
    typed[:] = texts.tokens[np.arange(layout.num_tokens) + starts.repeat(layout.lengths)]
    segment = segments_of(tokens) if typed.max() >> SEGMENT_BITS else None
    word = tokens if segment is None else ids_of(tokens)
    if "position" not in base.anatomy.family.outside:
        return word, np.zeros_like(word) if segment is None else segment
    position, first = layout.position + base.config.first_position, base.config.first_position
    if first and (padding := word[: layout.num_tokens] == base.config.padding_id).any():
        # RoBERTa counts only tokens that are not `<pad>`; a typed `<pad>` has the position before the first.
        before = padding.cumsum() - padding
        position[: layout.num_tokens] -= before - before[layout.starts].repeat(layout.lengths)
        position[: layout.num_tokens][padding] = first - 1
    return word, position if segment is None else segment * base.config.max_positions + position


class _Layout:
    """The sequences of one stage in its order: each text once for every row that it runs with.

    Attributes:
        members: [sequences of the stage], the first of the batch's sequences that each stands for.
        place: [sequences of the batch], the stage's sequence that stands for it.
        total: tokens with the filling.
        position: [total], each token's position in its sequence, 0 for the filling.
    """

    def __init__(self, texts: _Texts, rows: Array) -> None:
        first, first_of = texts.first_alike(rows)
        # Sequences of one length class and row keep the caller's order, so that equal calls are packed equally.
        self.members = first[np.lexsort((rows[first], length_classes(texts.lengths[first])))]
        self.place = np.empty_like(first_of)
        self.place[self.members] = np.arange(len(first))
        if len(first) < len(first_of):
            self.place = self.place[first_of]
        self.rows, self.lengths = rows[self.members], texts.lengths[self.members]
        self.stops = self.lengths.cumsum()
        self.starts = self.stops - self.lengths
        self.num_tokens = int(self.stops[-1])
        self.total = round_up(self.num_tokens)
        self.position = self._of_tokens(-self.starts)
        self.position[: self.num_tokens] += np.arange(self.num_tokens)

    def starts_in(self, before: "_Layout") -> Array:
        return before.starts[before.place[self.members]]

    def put_indices(self, arrays: dict[_Index, Array], number: int, parents: Array | None) -> None:
        """Adds the stage's index arrays; `parents`: each sequence's start in the stage before, if there is one."""
        edges = arrays["edges", number] = np.zeros(1 + len(self.stops), dtype=np.int32)
        edges[1:] = self.stops
        arrays["row_of_token", number] = self._of_tokens(self.rows)
        if parents is not None:
            arrays["source", number] = self._of_tokens(parents) + self.position

    def stage(self, base: Base, layers: range, indices: Mapping[_Index, Tensor], number: int) -> Stage:
        apart = base.batch_invariant
        begins = np.empty(len(self.rows), dtype=np.bool_)
        begins[: None if apart else 1] = True
        if not apart:
            np.not_equal(self.rows[1:], self.rows[:-1], out=begins[1:])
        count, filled = np.count_nonzero(begins), self.total > self.num_tokens
        spans = np.empty((count + filled, 3), dtype=np.int64)
        spans[:count, 0], spans[:count, 1] = self.rows[begins], self.starts[begins]
        spans[count:, :2] = BASE_ROW, self.num_tokens
        spans[:-1, 2], spans[-1, 2] = spans[1:, 1], self.total
        return Stage(
            layers=layers,
            source=indices.get(("source", number)),
            filling=self.total - self.num_tokens,
            row_of_token=indices["row_of_token", number],
            spans=spans,
            edges=indices["edges", number],
            rows=self.rows,
            lengths=self.lengths,
            dtype=base.dtype,
        )

    def _of_tokens(self, of_sequences: Array) -> Array:
        of_tokens = np.zeros(self.total, dtype=np.int64)
        of_tokens[: self.num_tokens] = of_sequences.repeat(self.lengths)
        return of_tokens
