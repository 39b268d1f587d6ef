"""Packing: sequences laid end to end, so that no linear layer ever sees a padding token.

Sequences are ordered by length bucket (powers of two), then by row: attention pads only inside a bucket, and one row's
tokens are contiguous, as branches need them. If one text is sent to several tasks (fan-out), the layers that their rows
do not change are computed once: the batch has several stages, and each stage takes its tokens from the one before.

Filling tokens round every stage up: matrix kernels are prepared per shape, and few shapes remain
(decision 7).
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, pairwise, starmap

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.layout.shapes import round_up
from onebert_encoder.layout.stage import Stage, length_class
from onebert_encoder.layout.upload import Array, upload
from onebert_encoder.text.tokens import Tokens

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
        first: [sequences], index of each sequence's first token in the last stage.
        lengths: [sequences], tokens of each sequence.
        inputs: index of each input's first sequence.
        apart: compute heads and branches per sequence, so that a text has the same bits in every batch.
    """

    word: Tensor
    position: Tensor
    stages: list[Stage]
    rows: list[int]
    first: Array
    lengths: Array
    inputs: list[int]
    apart: bool

    @property
    def sequence(self) -> Array:
        """[sequences], index in the last stage of each sequence."""
        return np.asarray(np.searchsorted(self.stages[-1].edges.numpy(), self.first, side="right") - 1)

    def of_inputs(self, x: Tensor) -> list[Tensor]:
        """The tokens of each input, [its tokens, h]; a pair of two sequences is joined."""
        spans = list(zip(self.first.tolist(), self.lengths.tolist(), strict=True))
        sequences = [x[start : start + length] for start, length in spans]
        ends = [*self.inputs[1:], len(sequences)]
        return [
            sequences[low] if high - low == 1 else torch.cat(sequences[low:high])
            for low, high in zip(self.inputs, ends, strict=True)
        ]

    @property
    def computed_tokens(self) -> float:
        """Computed tokens, each stage weighted by its share of the layers; sharing texts lowers it."""
        layers = sum(len(stage.layers) for stage in self.stages)
        return sum(len(stage.layers) * int(stage.lengths.sum()) for stage in self.stages) / layers


Key = tuple[int, int]
"""One sequence of a stage: (identity of a text, row). Inputs with the same key are computed once."""

_Index = tuple[str, int]
"""The name of an index array, and the number of the stage that reads it."""


def pack(
    base: Base,
    tokens: Sequence[Tokens],
    rows: Sequence[int],
    diverges_at: Sequence[int] | None = None,
    layers: range | None = None,
) -> Batch:
    """Packs sequences for one `encode`.

    Args:
        tokens: the inputs; an object that occurs several times is one text shared by several tasks.
        diverges_at: for each input the lowest layer at which its row differs from row `BASE_ROW`; None shares nothing.
        layers: the layers to run; None is all. A batch that starts above layer 0 takes activations.
    """
    layers = range(base.config.num_layers) if layers is None else layers
    counts = [len(text.sequences) for text in tokens]
    inputs = (np.cumsum(counts) - counts).tolist()
    if len(inputs) != sum(counts):
        rows = np.repeat(rows, counts).tolist()
        diverges_at = None if diverges_at is None else np.repeat(diverges_at, counts).tolist()
        tokens = [part for text in tokens for part in text.sequences]
    shared_until = _shared_until(tokens, diverges_at)
    texts = {id(text): text for text in tokens}
    lows = sorted({layers.start, *(layer for layer in shared_until if layer in layers)})
    layouts: list[_Layout] = []
    arrays: dict[_Index, Array] = {}
    for low in lows:
        keys = [
            (id(text), row if until <= low else BASE_ROW)
            for text, row, until in zip(tokens, rows, shared_until, strict=True)
        ]
        layout = _Layout(keys, texts)
        starts = _starts_given(tokens, layout) if layers.start else None
        parents = layout.starts_in(layouts[-1]) if layouts else starts
        arrays |= {(name, len(layouts)): array for name, array in layout.indices(parents).items()}
        layouts.append(layout)
    arrays["word", 0], arrays["position", 0] = _embedding_indices(base, texts, layouts[0])
    tensors = upload(arrays, base.device)
    layers_of = starmap(range, pairwise([*lows, layers.stop]))
    laid = zip(layouts, layers_of, strict=True)
    stages = [layout.stage(base, range_of, tensors, i) for i, (layout, range_of) in enumerate(laid)]
    return Batch(
        word=tensors["word", 0],
        position=tensors["position", 0],
        stages=stages,
        rows=list(rows),
        first=np.array([layout.start_of[key] for key in keys]),
        lengths=np.array([len(text) for text in tokens]),
        inputs=inputs,
        apart=base.batch_invariant,
    )


def _shared_until(tokens: Sequence[Tokens], diverges_at: Sequence[int] | None) -> list[int]:
    """For each sequence, the number of layers it runs as the bare base: 0 if its text occurs only once."""
    if diverges_at is None:
        return [0] * len(tokens)
    uses = Counter(map(id, tokens))
    return [layer if uses[id(text)] > 1 else 0 for text, layer in zip(tokens, diverges_at, strict=True)]


def _starts_given(tokens: Sequence[Tokens], layout: "_Layout") -> list[int]:
    starts = np.cumsum([0, *map(len, tokens)]).tolist()
    start_of = dict(zip(reversed(layout.keys), reversed(starts[:-1]), strict=True))
    return [start_of[key] for key in layout.order]


def _embedding_indices(base: Base, texts: Mapping[int, Tokens], layout: "_Layout") -> tuple[Array, Array]:
    laid = [texts[text] for text, _ in layout.order]
    word, segment = np.zeros((2, layout.num_tokens + layout.filling), dtype=np.int64)
    typed = word[: layout.num_tokens]
    typed[:] = list(chain.from_iterable(text.input_ids for text in laid))
    if any(any(text.type_ids) for text in laid):
        segment[: layout.num_tokens] = list(chain.from_iterable(text.type_ids for text in laid))
    if "position" not in base.anatomy.family.outside:
        return word, segment
    position, first = layout.position + base.config.first_position, base.config.first_position
    if first and (padding := typed == base.config.padding_id).any():
        # RoBERTa counts only tokens that are not `<pad>`; a typed `<pad>` has the position before the first.
        before = np.cumsum(padding) - padding
        position[: layout.num_tokens] -= before - np.repeat(before[layout.starts], layout.lengths)
        position[: layout.num_tokens][padding] = first - 1
    return word, segment * base.config.max_positions + position


class _Layout:
    def __init__(self, keys: Sequence[Key], texts: Mapping[int, Tokens]) -> None:
        self.keys = keys
        # Sequences of one length class and row keep the caller's order, so that equal calls are packed equally.
        length_of = {text: len(tokens) for text, tokens in texts.items()}
        self.order = sorted(dict.fromkeys(keys), key=lambda key: (length_class(length_of[key[0]]), key[1]))
        self.rows = np.array([row for _, row in self.order], dtype=np.int64)
        self.lengths = np.array([length_of[text] for text, _ in self.order], dtype=np.int64)
        self.stops = np.cumsum(self.lengths)
        self.starts = self.stops - self.lengths
        self.start_of: dict[Key, int] = dict(zip(self.order, self.starts.tolist(), strict=True))
        self.num_tokens = int(self.stops[-1])
        self.filling = round_up(self.num_tokens) - self.num_tokens
        self.position = np.zeros(self.num_tokens + self.filling, dtype=np.int64)
        self.position[: self.num_tokens] = np.arange(self.num_tokens) - np.repeat(self.starts, self.lengths)

    def starts_in(self, before: "_Layout") -> list[int]:
        parent = dict(zip(self.keys, before.keys, strict=True))
        return [before.start_of[parent[key]] for key in self.order]

    def tokens_from(self, parents: Sequence[int]) -> Array:
        return np.asarray(self._filled(np.repeat(np.array(parents, dtype=np.int64), self.lengths)) + self.position)

    def indices(self, parents: Sequence[int] | None) -> dict[str, Array]:
        """The stage's index arrays; `parents`: each sequence's start in the stage before, if there is one."""
        return {
            "row_of_token": self._filled(np.repeat(self.rows, self.lengths)),
            "edges": np.concatenate([[0], self.stops]).astype(np.int32),
            **({} if parents is None else {"source": self.tokens_from(parents)}),
        }

    def stage(self, base: Base, layers: range, indices: Mapping[_Index, Tensor], number: int) -> Stage:
        return Stage(
            layers=layers,
            source=indices.get(("source", number)),
            filling=self.filling,
            row_of_token=indices["row_of_token", number],
            spans=self.spans(base.batch_invariant),
            edges=indices["edges", number],
            rows=self.rows,
            lengths=self.lengths,
            dtype=base.dtype,
        )

    def spans(self, apart: bool) -> list[tuple[int, int, int]]:
        """(row, start, stop) of neighboring sequences with one row, or of each one if `apart`; the filling last."""
        rows, starts, stops = self.rows.tolist(), self.starts.tolist(), self.stops.tolist()
        edges = [0, *(i for i, (a, b) in enumerate(pairwise(rows), 1) if apart or a != b), len(rows)]
        spans = [(rows[low], starts[low], stops[high - 1]) for low, high in pairwise(edges)]
        return [*spans, (0, self.num_tokens, self.num_tokens + self.filling)] if self.filling else spans

    def _filled(self, of_tokens: Array) -> Array:
        return np.concatenate([of_tokens, np.zeros(self.filling, dtype=np.int64)])
