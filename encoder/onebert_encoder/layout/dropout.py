"""Dropout for training: every row of a batch draws from its own generator, independently of the other rows."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from onebert_encoder.layout.stage import Bucket, Stage


@dataclass(frozen=True)
class Dropout:
    """Dropout probabilities, and one generator per row on the base's device.

    `hidden` is for embeddings and sublayers' outputs without their biases. A row draws its masks in the order of its
    own sequences, so a run drops the same numbers alone and next to other runs.
    """

    hidden: float
    attention: float
    generators: Sequence[torch.Generator] = ()

    def on_tokens(self, x: Tensor, stage: Stage) -> Tensor:
        return x * _mask(self.of_tokens(stage, x.shape[1]), self.hidden, x.dtype) if self.hidden else x

    def on_attention(self, probabilities: Tensor, bucket: Bucket) -> Tensor:
        if not self.attention:
            return probabilities
        mask = torch.ones_like(probabilities)
        for low, drawn in self.of_attention(bucket, probabilities.shape[1]):
            count, _, longest, _ = drawn.shape
            mask[low : low + count, :, :longest, :longest] = _mask(drawn, self.attention, mask.dtype)
        return probabilities * mask

    def of_tokens(self, stage: Stage, width: int) -> Tensor:
        """Random int16 [tokens, width], which `keep_of` compares with its threshold."""
        filled = len(stage.row_of_token) - stage.filling
        out = torch.zeros(len(stage.row_of_token), width, dtype=torch.int16, device=stage.row_of_token.device)
        by_row = sorted(stage.spans[stage.spans[:, 1] < filled].tolist())
        for row, group in groupby(by_row, key=lambda span: span[0]):
            spans = [(start, stop) for _, start, stop in group]
            drawn = self._draw(row, (sum(stop - start for start, stop in spans), width), out.device)
            for (start, stop), part in zip(spans, torch.split(drawn, [b - a for a, b in spans]), strict=True):
                out[start:stop] = part
        return out

    def of_attention(self, bucket: Bucket, num_heads: int) -> Iterator[tuple[int, Tensor]]:
        """Random int16 [sequences, heads, longest, longest] for each row, after the index of its first sequence."""
        for row, group in groupby(range(bucket.count), key=lambda i: int(bucket.rows[i])):
            sequences = list(group)
            low, high = sequences[0], sequences[-1] + 1
            longest = int(bucket.lengths[low:high].max())
            yield low, self._draw(row, (high - low, num_heads, longest, longest), self.generators[row].device)

    def _draw(self, row: int, shape: tuple[int, ...], device: torch.device) -> Tensor:
        # Each 64-bit random number gives four of 16 bits: several times faster than `bernoulli_`, which took an eighth
        # of a training step.
        count = math.prod(shape)
        words = torch.empty(-(-count // 4), dtype=torch.int64, device=device)
        words.random_(-(2**63), None, generator=self.generators[row])
        return words.view(torch.int16)[:count].view(shape)


def keep_of(drop: float) -> tuple[int, float]:
    """The threshold below which a random int16 is kept, and the scale of kept numbers."""
    # The probability is rounded to a multiple of 2^-16; the scale matches the rounded one.
    keep = round((1 - drop) * 2**16)
    return keep - 2**15, 2**16 / keep


def _mask(drawn: Tensor, drop: float, dtype: torch.dtype) -> Tensor:
    below, scale = keep_of(drop)
    return (drawn < below).to(dtype).mul_(scale)


NO_DROPOUT = Dropout(0.0, 0.0)
