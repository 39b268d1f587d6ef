"""From rows and tokens to logits; golden logits, which show that a file is folded and computed as its trainer did."""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.layout.dropout import NO_DROPOUT, Dropout
from onebert_encoder.maths.batch import Batch, pack
from onebert_encoder.maths.choose import choose_forward, choose_heads
from onebert_encoder.maths.encode import encode
from onebert_encoder.maths.graphs import Graphs
from onebert_encoder.maths.heads import classify
from onebert_encoder.maths.rows import Head, Row, Rows, stack_rows
from onebert_encoder.text.tokens import Tokens
from onebert_store.file.manifest import SIAMESE, Golden

# Tokens of the golden sequences. A per-token task, which has logits for every token, has no third sequence: its logits
# would make the file's header large.
_GOLDEN_LENGTHS = (4, 17, 48)
_GOLDEN_SEED = 20240601

# Largest deviation, relative to the largest logit without its bias (at least 1). float32: the trainer and this machine
# may sum in another order, on other kernels. bfloat16: 8 bits of mantissa, rounded again at each sum of a layer. int8:
# 8 bits for the whole range of a token. Decision 4 has measured deviations.
_GOLDEN_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15, torch.int8: 0.6}


def compute_logits(
    base: Base,
    rows: Rows,
    batch: Batch,
    dropout: Dropout = NO_DROPOUT,
    activations: Tensor | None = None,
    graphs: Graphs | None = None,
    between: Callable[[], None] | None = None,
) -> list[Tensor]:
    """Logits of every input: gather, encode, classify.

    The arguments are those of `encode`. With `graphs` the encoder runs on recordings, without dropout or activations.
    A pass in one call is one for each layer with `between`, which is called between layers and may run another pass.

    Returns:
        One float32 tensor per input, in the caller's order: [labels], or [length, labels] for a per-token task.

    Raises:
        ValueError: a sequence's row has no head, like the bare base's.
    """
    heads = [_head(rows, row) for row in batch.rows]
    forward = None if graphs or activations is not None else choose_forward(base, dropout)
    if forward is not None:
        x, logits = forward.classify(rows, batch, heads, between)
        rest = [i for i in batch.inputs if i not in logits]
        if rest:
            logits |= zip(rest, classify(heads, batch, x, inputs=rest), strict=True)
        return [logits[i] for i in batch.inputs]
    x = graphs.encode(rows, batch) if graphs else encode(base, rows, batch, dropout, activations)
    return classify(heads, batch, x, choose_heads(base))


def _head(rows: Rows, row: int) -> Head:
    head = rows.heads[row]
    if head is None:
        raise ValueError("the bare base has no head to answer with")
    return head


def golden_tokens(base: Base, max_length: int, pooling: str) -> list[Tokens]:
    """Random token sequences from a fixed seed: nobody's text, and the same for all deltas of a base.

    Args:
        base: gives the vocabulary.
        max_length: in tokens; longer sequences are cut to it.
        pooling: of the task; with `none` it has logits for every token.
    """
    generator = np.random.default_rng(_GOLDEN_SEED)
    lengths = [min(length, max_length) for length in _GOLDEN_LENGTHS]
    drawn = [generator.integers(0, base.config.vocab_size, length).tolist() for length in lengths]
    return [tokens_of_ids(ids, pooling) for ids in (drawn[:-1] if pooling == "none" else drawn)]


def tokens_of_ids(ids: Sequence[int], pooling: str = "mean") -> Tokens:
    """Token ids as one segment; for a task that compares two texts, as two of half the length, the first no shorter."""
    return Tokens(list(ids), [0] * len(ids), second=-(-len(ids) // 2) if pooling == SIAMESE else 0)


def compute_golden(base: Base, row: Row, max_length: int) -> Golden:
    """The golden sequences with this base's logits for them; the base should compute in float32."""
    rows = stack_rows(base, [row])
    tokens = golden_tokens(base, max_length, _head(rows, 0).pooling)
    with torch.inference_mode():
        logits = compute_logits(base, rows, pack(base, tokens, [0] * len(tokens)))
    return Golden(input_ids=[text.input_ids for text in tokens], logits=[row.flatten().tolist() for row in logits])


def golden_tolerance(precision: torch.dtype, logits: Sequence[Sequence[float]], bias: Sequence[float]) -> float:
    """The largest difference from recorded float32 logits that a base of this precision may show.

    Args:
        precision: the base's.
        logits: as recorded: [labels] for each sequence, or its tokens' logits, [tokens * labels].
        bias: [labels], the head's bias. Rounding does not touch it, and a regression's may be large; so it is left out
            of the scale that the tolerance is relative to.
    """
    by_label = np.concatenate([np.reshape(row, (-1, len(bias))) for row in logits])
    decided = np.abs(by_label - np.asarray(bias)).max(initial=0.0)
    return _GOLDEN_TOLERANCE[precision] * max(1.0, float(decided))
