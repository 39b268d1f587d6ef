"""Computes logits from rows and tokens; golden logits check that this machine folds and computes like the trainer."""

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.layout.dropout import NO_DROPOUT, Dropout
from onebert_encoder.maths.batch import Batch, pack
from onebert_encoder.maths.choose import choose_forward, choose_heads
from onebert_encoder.maths.encode import encode
from onebert_encoder.maths.flat import Flat
from onebert_encoder.maths.graphs import Graphs
from onebert_encoder.maths.heads import classify
from onebert_encoder.maths.rows import Heads, Row, Rows, stack_rows
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Tokens
from onebert_store.file.manifest import SIAMESE, Golden

# Tokens of the golden sequences. A per-token task has no third one: its logits, one set per token, would enlarge the
# file's header.
_GOLDEN_LENGTHS = (4, 17, 48)
_GOLDEN_SEED = 20240601

# Largest deviation, relative to the largest logit without its bias (at least 1). float32: the trainer may sum in
# another order, on other kernels. bfloat16: 8 bits of mantissa, rounded at each sum of a layer. int8: 8 bits for a
# token's whole range. decision 4 has measured deviations.
_GOLDEN_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15, torch.int8: 0.6}


def compute_logits(
    base: Base,
    rows: Rows,
    batch: Batch,
    dropout: Dropout = NO_DROPOUT,
    activations: Tensor | None = None,
    graphs: Graphs | None = None,
) -> Flat:
    """Gathers, encodes and classifies.

    With `graphs` the encoder runs on recordings, without dropout or activations. Raises ValueError for a row without a
    head.
    """
    heads = Heads.of(rows, batch.rows)
    forward = None if graphs or activations is not None else choose_forward(base, dropout)
    if forward is not None:
        logits = Flat.empty(heads, batch)
        x, written = forward.classify(rows, batch, heads, logits)
        if not written.all():
            logits.fill(~written, classify(heads, batch, x, base.config.eps, inputs=batch.inputs[~written]))
        return logits
    x = graphs.encode(rows, batch) if graphs else encode(base, rows, batch, dropout, activations)
    return classify(heads, batch, x, base.config.eps, choose_heads(base))


def golden_tokens(base: Base, max_length: int, pooling: str) -> list[Tokens]:
    """Random token sequences from a fixed seed, the same for all deltas of a base, cut to `max_length` tokens."""
    generator = np.random.default_rng(_GOLDEN_SEED)
    lengths = [min(length, max_length) for length in _GOLDEN_LENGTHS]
    drawn = [generator.integers(0, base.config.vocab_size, length).tolist() for length in lengths]
    return [tokens_of_ids(ids, pooling) for ids in (drawn[:-1] if pooling == "none" else drawn)]


def tokens_of_ids(ids: Sequence[int], pooling: str = "mean") -> Tokens:
    """Token ids as one segment; for siamese pooling as two texts of half the length, the first no shorter."""
    return Tokens(list(ids), [0] * len(ids), second=-(-len(ids) // 2) if pooling == SIAMESE else 0)


def compute_golden(base: Base, row: Row, max_length: int) -> Golden:
    """The golden sequences with this base's logits; the base should compute in float32."""
    if row.head is None:
        raise ValueError("the bare base has no head to answer with")
    tokens = golden_tokens(base, max_length, row.head.pooling)
    with torch.inference_mode():
        batch = pack(base, Sequences.of(tokens), [0] * len(tokens))
        logits = compute_logits(base, stack_rows(base, [row]), batch).split()
    return Golden(input_ids=[text.input_ids for text in tokens], logits=[row.flatten().tolist() for row in logits])


def golden_tolerance(precision: torch.dtype, logits: Sequence[Sequence[float]], bias: Sequence[float]) -> float:
    """The largest allowed difference of recorded float32 logits (without the head's bias) from this precision's."""
    by_label = np.concatenate([np.reshape(row, (-1, len(bias))) for row in logits])
    decided = np.abs(by_label - np.asarray(bias)).max(initial=0.0)
    return _GOLDEN_TOLERANCE[precision] * max(1.0, float(decided))
