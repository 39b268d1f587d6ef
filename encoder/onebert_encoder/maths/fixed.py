"""A batch at fixed addresses, which recorded launches read: other batches of its kind are copied into it."""

import numpy as np
import torch

from onebert_encoder.base.base import Base
from onebert_encoder.layout.shapes import step_at
from onebert_encoder.layout.stage import Stage
from onebert_encoder.maths.batch import Batch

# Up to so many tokens a batch has room for a sequence for every 8 of them, beyond for every 16.
SMALL = 2048


def fits(batch: Batch) -> bool:
    """Whether the batch has one stage from the embeddings on, and no more sequences than `room`."""
    (first, *more_stages), size = batch.stages, len(batch.word)
    return not more_stages and first.source is None and len(first.lengths) <= room(size)


def room(size: int) -> int:
    """The most sequences of a batch of `size` tokens; surplus ones cost launches."""
    return max(1, size // (8 if size <= SMALL else 16))


def longest_of(batch: Batch, max_length: int) -> int:
    """An upper bound of the sequences' lengths: few classes keep programs and recordings few."""
    size, longest = len(batch.word), int(batch.lengths.max())
    bound = next((bound for bound in (64, 128, 256, 512) if longest <= bound), max_length)
    return min(bound, size, max_length)


class FixedBatch:
    """`batch`, one stage of all layers: at first zeros in sequences of `longest` tokens, of row 0 alone."""

    def __init__(self, base: Base, size: int, longest: int) -> None:
        word, position, row_of_token = torch.zeros(3, size, dtype=torch.int64, device=base.device)
        sequences, layers = room(size), range(base.config.num_layers)
        edges = torch.arange(sequences + 1, dtype=torch.int32, device=base.device).mul_(longest).clamp_(max=size)
        rows, lengths = np.zeros(sequences, dtype=np.int64), np.full(sequences, longest)
        spans, filling = np.array([(0, 0, size)]), step_at(size)
        self.stage = Stage(layers, None, filling, row_of_token, spans, edges, rows, lengths, base.dtype)
        none = np.empty(0, dtype=np.int64)
        self.batch = Batch(word, position, [self.stage], none, none, rows, lengths, none, base.batch_invariant)

    def load(self, batch: Batch, *indices: tuple[torch.Tensor, torch.Tensor]) -> None:
        """Copies a batch that fits, and pairs of other indices of tokens (into, from), in three launches."""
        (stage,), fixed = batch.stages, self.stage
        inputs = (self.batch.word, batch.word), (self.batch.position, batch.position)
        into, sources = zip(*inputs, (fixed.row_of_token, stage.row_of_token), *indices, strict=True)
        torch._foreach_copy_(list(into), list(sources))
        fixed.edges[: len(stage.edges)].copy_(stage.edges)
        # Surplus sequences are empty: they start and end where the filling starts.
        fixed.edges[len(stage.edges) :].copy_(stage.edges[-1:].expand(len(fixed.edges) - len(stage.edges)))
