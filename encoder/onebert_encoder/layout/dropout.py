"""Dropout for training: every row of a batch draws from its own generator, so that neighbors change nothing."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from torch import Tensor

from onebert_encoder.layout.stage import Bucket, Stage


@dataclass(frozen=True)
class Dropout:
    """Probabilities, and where each row's randomness comes from.

    A row draws its masks in the order of its own sequences, which is the same alone and in any mixture: a run that
    trains beside others drops out the same numbers as alone. docs/decisions/0003-dropout.md says what is dropped out.

    Attributes:
        hidden: on the embeddings and on the sublayers' outputs without their biases.
        attention: on the attention probabilities.
        generators: the generator of each row, on the base's device.
    """

    hidden: float
    attention: float
    generators: Sequence[torch.Generator] = ()

    def on_tokens(self, x: Tensor, stage: Stage) -> Tensor:
        """Drops out of activations [tokens, h]."""
        if not self.hidden:
            return x
        mask = torch.ones_like(x)
        filled = len(x) - stage.filling
        by_row = sorted(span for span in stage.spans if span[1] < filled)
        for row, own in groupby(by_row, key=lambda span: span[0]):
            spans = [(start, stop) for _, start, stop in own]
            drawn = self._draw(row, (sum(stop - start for start, stop in spans), x.shape[1]), self.hidden, x)
            for (start, stop), part in zip(spans, torch.split(drawn, [b - a for a, b in spans]), strict=True):
                mask[start:stop] = part
        return x * mask

    def on_attention(self, probabilities: Tensor, bucket: Bucket) -> Tensor:
        """Drops out of attention probabilities [sequences, heads, length, length].

        Masks are drawn up to the longest sequence of a row: probabilities behind it are zero.
        """
        if not self.attention:
            return probabilities
        mask = torch.ones_like(probabilities)
        for row, own in groupby(range(bucket.count), key=lambda i: int(bucket.rows[i])):
            sequences = list(own)
            low, high = sequences[0], sequences[-1] + 1
            longest = int(bucket.lengths[low:high].max())
            shape = (high - low, probabilities.shape[1], longest, longest)
            mask[low:high, :, :longest, :longest] = self._draw(row, shape, self.attention, probabilities)
        return probabilities * mask

    def _draw(self, row: int, shape: tuple[int, ...], drop: float, like: Tensor) -> Tensor:
        """A mask that is zero with probability `drop`, else 1 / (1 - drop)."""
        # One random number of 64 bits is used as four of 16: several times as fast as `bernoulli_`, which took an
        # eighth of a training step. The probability is rounded to a multiple of 2^-16; the scale fits the rounded one.
        count = math.prod(shape)
        words = torch.empty(-(-count // 4), dtype=torch.int64, device=like.device)
        words.random_(-(2**63), None, generator=self.generators[row])
        keep = round((1 - drop) * 2**16)
        kept = words.view(torch.int16)[:count] < keep - 2**15
        return kept.view(shape).to(like.dtype).mul_(2**16 / keep)


NO_DROPOUT = Dropout(0.0, 0.0)
