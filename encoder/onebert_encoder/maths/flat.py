"""The logits of a batch as one tensor."""

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.layout.upload import Array
from onebert_encoder.maths.batch import Batch
from onebert_encoder.maths.rows import POOLED, Heads, Number


@dataclass(frozen=True)
class Flat:
    """Float32 logits of a batch's inputs, end to end.

    Attributes:
        values: [logits].
        sizes: [inputs], the number of each input's logits.
        lengths: [inputs], the tokens that the input's head reads one by one; 0 for a head that reads it as a whole.
    """

    values: Tensor
    sizes: Array
    lengths: Array

    @classmethod
    def empty(cls, heads: Heads, batch: Batch) -> "Flat":
        """Room for the logits of all inputs, on the CPU."""
        sizes, lengths = shapes_of(heads, batch, batch.inputs)
        return cls(torch.empty(int(sizes.sum())), sizes, lengths)

    @property
    def starts(self) -> Array:
        return np.asarray(self.sizes.cumsum() - self.sizes)

    def fill(self, inputs: Array, logits: "Flat") -> None:
        """Writes the logits of the chosen inputs, a mask, which `logits` has in the same order; on the CPU."""
        self.values[torch.from_numpy(ranges(self.starts[inputs], self.sizes[inputs]))] = logits.values

    def split(self) -> list[Tensor]:
        """The logits of each input: [labels], or [length, labels] if the head reads every token."""
        parts = torch.split(self.values, self.sizes.tolist())
        return [
            part.view(length, -1) if length else part for part, length in zip(parts, self.lengths.tolist(), strict=True)
        ]


def shapes_of(heads: Heads, batch: Batch, inputs: Array) -> tuple[Array, Array]:
    """`sizes` and `lengths` of the logits of inputs, which their first sequences name."""
    numbers = heads.numbers[inputs]
    lengths = batch.lengths[inputs] * (numbers[:, Number.POOLED] == POOLED["none"])
    return numbers[:, Number.LABELS] * np.maximum(lengths, 1), lengths


def ranges(first: Array, lengths: Array) -> Array:
    """Ranges of numbers, one behind the other: each begins with its `first` and has its length."""
    if len(first) == 1:
        return np.arange(int(first[0]), int(first[0] + lengths[0]))
    before = lengths.cumsum() - lengths
    return np.asarray(np.arange(lengths.sum()) + (first - before).repeat(lengths))
