"""From rows and tokens to logits, from logits to answers, and the golden logits that tie a file to its trainer."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.base import Base
from onebert_encoder.batch import Batch, pack
from onebert_encoder.encode import NO_DROPOUT, Dropout, encode
from onebert_encoder.fold import Head, Row, Rows, stack_rows
from onebert_encoder.heads import classify
from onebert_encoder.tokens import Tokens
from onebert_store.manifest import Golden, Manifest

Array = np.ndarray[Any, np.dtype[np.float32]]

MULTI_LABEL_THRESHOLD = 0.5

_GOLDEN_LENGTHS = (4, 17, 48)
_GOLDEN_SEED = 20240601

# Relative to the largest part of a logit that the encoder decides (at least 1). float32: the trainer and this machine
# may sum in another order, on other kernels. bfloat16: 8 bits of mantissa, rounded again at every one of a layer's
# sums. docs/decisions/0004-golden.md has the deviations measured.
_GOLDEN_TOLERANCE = {torch.float32: 1e-3, torch.bfloat16: 0.15}


def compute_logits(base: Base, rows: Rows, batch: Batch, dropout: Dropout = NO_DROPOUT) -> list[Tensor]:
    """Logits of every sequence: gather, encode, classify.

    Returns:
        One float32 [labels] tensor per sequence, in the caller's order.

    Raises:
        ValueError: a sequence's row is the bare base, which has no head.
    """
    heads = [_head(rows, row) for row in batch.rows]
    return classify(heads, batch, encode(base, rows, batch, dropout))


def _head(rows: Rows, row: int) -> Head:
    head = rows.heads[row]
    if head is None:
        raise ValueError("the bare base has no head to answer with")
    return head


@dataclass(frozen=True)
class Prediction:
    """One answer.

    Attributes:
        label: the most likely label; for a regression the name of the first output.
        score: its probability; for a regression the value.
        scores: label -> probability or value, highest first (a regression keeps its own order).
        labels: the labels over the threshold of a multi-label task, else None.
    """

    label: str
    score: float
    scores: dict[str, float]
    labels: list[str] | None = None


def answer(logits: Array, manifest: Manifest, top_k: int | None = None) -> Prediction:
    """Turns logits into an answer: softmax, sigmoid or the plain value, by task type.

    Args:
        logits: [labels] float32.
        manifest: gives the task type and the label names.
        top_k: how many entries `scores` keeps; None keeps all.
    """
    values = logits.astype(np.float64)
    if manifest.task_type == "regression":
        scores = dict(zip(manifest.labels, values.tolist(), strict=True))
        return Prediction(manifest.labels[0], scores[manifest.labels[0]], scores)
    if manifest.task_type == "single_label":
        exponentials = np.exp(values - values.max())
        scored = exponentials / exponentials.sum()
    else:
        scored = 0.5 * (1.0 + np.tanh(0.5 * values))
    order = np.argsort(-scored, kind="stable").tolist()
    best = order[0]
    chosen = None
    if manifest.task_type == "multi_label":
        chosen = [manifest.labels[i] for i in order if scored[i] >= MULTI_LABEL_THRESHOLD]
    scores = {manifest.labels[i]: float(scored[i]) for i in order[:top_k]}
    return Prediction(manifest.labels[best], float(scored[best]), scores, chosen)


def golden_tokens(base: Base, max_length: int) -> list[Tokens]:
    """Token sequences from a fixed seed: never anybody's text, the same for every delta of a base."""
    generator = np.random.default_rng(_GOLDEN_SEED)
    lengths = [min(length, max_length) for length in _GOLDEN_LENGTHS]
    drawn = [generator.integers(0, base.config.vocab_size, length).tolist() for length in lengths]
    return [tokens_of_ids(ids) for ids in drawn]


def tokens_of_ids(ids: Sequence[int]) -> Tokens:
    """Token ids as one segment."""
    return Tokens(list(ids), [0] * len(ids))


def compute_golden(base: Base, row: Row, max_length: int) -> Golden:
    """The golden sequences with the logits that this base, which should compute in float32, gives for them."""
    tokens = golden_tokens(base, max_length)
    with torch.inference_mode():
        logits = compute_logits(base, stack_rows(base, [row]), pack(base, tokens, [0] * len(tokens)))
    return Golden(input_ids=[text.input_ids for text in tokens], logits=[row.tolist() for row in logits])


def golden_tolerance(dtype: torch.dtype, logits: Sequence[Sequence[float]], bias: Sequence[float]) -> float:
    """Largest difference from recorded float32 logits that a machine computing in `dtype` may show.

    Args:
        dtype: compute dtype.
        logits: [sequences, labels] as recorded.
        bias: [labels], the head's bias, which rounding does not touch: a regression's values may lie far from zero.
    """
    decided = np.abs(np.asarray(logits) - np.asarray(bias)).max(initial=0.0)
    return _GOLDEN_TOLERANCE[dtype] * max(1.0, float(decided))
