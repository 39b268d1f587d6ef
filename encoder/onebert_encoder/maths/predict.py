"""From rows and tokens to logits, and the golden logits that tie a file to its trainer."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.layout.dropout import NO_DROPOUT, Dropout
from onebert_encoder.maths.batch import Batch, pack
from onebert_encoder.maths.choose import choose_heads
from onebert_encoder.maths.encode import encode
from onebert_encoder.maths.graphs import Graphs
from onebert_encoder.maths.heads import classify
from onebert_encoder.maths.rows import Head, Row, Rows, stack_rows
from onebert_encoder.text.tokens import Tokens
from onebert_store.file.manifest import Golden

# The last is left out where there are logits for every token, which would make the file's header large.
_GOLDEN_LENGTHS = (4, 17, 48)
_GOLDEN_SEED = 20240601

# Relative to the largest part of a logit that the encoder decides (at least 1). float32: the trainer and this machine
# may sum in another order, on other kernels. bfloat16: 8 bits of mantissa, rounded again at every one of a layer's
# sums. int8: 8 bits for a token's whole range. docs/decisions/0004-golden.md has the deviations measured.
_GOLDEN_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15, torch.int8: 0.6}


def compute_logits(
    base: Base,
    rows: Rows,
    batch: Batch,
    dropout: Dropout = NO_DROPOUT,
    activations: Tensor | None = None,
    graphs: Graphs | None = None,
) -> list[Tensor]:
    """Logits of every sequence: gather, encode, classify; the arguments are those of `encode`.

    Given `graphs`, these encode, without dropout or activations.

    Returns:
        One float32 tensor per sequence, in the caller's order: [labels], or [length, labels] for a per-token task.

    Raises:
        ValueError: a sequence's row is the bare base, which has no head.
    """
    heads = [_head(rows, row) for row in batch.rows]
    x = graphs.encode(rows, batch) if graphs else encode(base, rows, batch, dropout, activations)
    return classify(heads, batch, x, choose_heads(base))


def _head(rows: Rows, row: int) -> Head:
    head = rows.heads[row]
    if head is None:
        raise ValueError("the bare base has no head to answer with")
    return head


def golden_tokens(base: Base, max_length: int, per_token: bool) -> list[Tokens]:
    """Token sequences from a fixed seed: never anybody's text, the same for every delta of a base and kind."""
    generator = np.random.default_rng(_GOLDEN_SEED)
    lengths = [min(length, max_length) for length in _GOLDEN_LENGTHS]
    drawn = [generator.integers(0, base.config.vocab_size, length).tolist() for length in lengths]
    return [tokens_of_ids(ids) for ids in (drawn[:-1] if per_token else drawn)]


def tokens_of_ids(ids: Sequence[int]) -> Tokens:
    """Token ids as one segment."""
    return Tokens(list(ids), [0] * len(ids))


def compute_golden(base: Base, row: Row, max_length: int) -> Golden:
    """The golden sequences with the logits that this base, which should compute in float32, gives for them."""
    rows = stack_rows(base, [row])
    tokens = golden_tokens(base, max_length, per_token=_head(rows, 0).pooling == "none")
    with torch.inference_mode():
        logits = compute_logits(base, rows, pack(base, tokens, [0] * len(tokens)))
    return Golden(input_ids=[text.input_ids for text in tokens], logits=[row.flatten().tolist() for row in logits])


def golden_tolerance(precision: torch.dtype, logits: Sequence[Sequence[float]], bias: Sequence[float]) -> float:
    """Largest difference from recorded float32 logits that a base of this precision may show.

    Args:
        precision: of the base.
        logits: [sequences, labels] as recorded, or of each sequence its tokens' labels, flat.
        bias: [labels], the head's bias, which rounding does not touch: a regression's values may lie far from zero.
    """
    by_label = np.concatenate([np.reshape(row, (-1, len(bias))) for row in logits])
    decided = np.abs(by_label - np.asarray(bias)).max(initial=0.0)
    return _GOLDEN_TOLERANCE[precision] * max(1.0, float(decided))
