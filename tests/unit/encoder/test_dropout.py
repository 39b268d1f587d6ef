"""Dropout: masks of a row do not depend on other rows, have the right rate, and apply where the base has dropout."""

from itertools import chain

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from bases import far_row
from bases import loaded as base
from batches import logits_of, packed
from onebert_encoder.layout.dropout import Dropout
from onebert_encoder.layout.stage import Bucket
from onebert_encoder.maths.batch import Batch
from onebert_encoder.maths.rows import stack_rows
from onebert_encoder.text.tokens import Tokens

Masks = list[tuple[Tensor, Tensor]]


def text_of(length: int) -> Tokens:
    return Tokens([5 + i % 60 for i in range(length)], [0] * length)


def dropout_of(seeds: list[int], hidden: float = 0.3, attention: float = 0.2) -> Dropout:
    return Dropout(hidden, attention, [torch.Generator().manual_seed(seed) for seed in seeds])


def ones_for(bucket: Bucket) -> Tensor:
    return torch.ones(bucket.count, base().config.num_heads, bucket.length, bucket.length)


def masks_of(batch: Batch, dropout: Dropout) -> Masks:
    """Of each sequence, in the caller's order, what a layer drops after embeddings that were dropped out, too."""
    (stage,) = batch.stages
    ones = torch.ones(len(batch.word), base().config.hidden_size)
    dropout.on_tokens(ones, stage)
    of_bucket = [dropout.on_attention(ones_for(bucket), bucket) for bucket in stage.buckets]
    on_tokens = dropout.on_tokens(ones, stage)
    masks: dict[int, tuple[Tensor, Tensor]] = {}
    for bucket, mask in zip(stage.buckets, of_bucket, strict=True):
        starts = bucket.start + np.cumsum([0, *bucket.lengths[:-1]])
        for i, (start, length) in enumerate(zip(starts.tolist(), bucket.lengths.tolist(), strict=True)):
            masks[start] = on_tokens[start : start + length], mask[i, :, :length, :length]
    return [masks[start] for start in batch.first.tolist()]


@given(st.lists(st.tuples(st.integers(1, 64), st.integers(0, 3)), min_size=1, max_size=24))
def test_a_row_drops_the_same_alone_and_in_any_mixture(drawn: list[tuple[int, int]]) -> None:
    texts, rows = [text_of(length) for length, _ in drawn], [row for _, row in drawn]
    mixed = masks_of(packed(base(), texts, rows), dropout_of([10, 11, 12, 13]))
    for row in set(rows):
        its_texts = [text for text, its in zip(texts, rows, strict=True) if its == row]
        alone = masks_of(packed(base(), its_texts, [0] * len(its_texts)), dropout_of([10 + row]))
        here = [mask for mask, its in zip(mixed, rows, strict=True) if its == row]
        for first, other in zip(chain(*here), chain(*alone), strict=True):
            assert torch.equal(first, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("drop", [0.1, 0.5])
def test_so_many_are_dropped_and_the_rest_is_larger_by_as_much(drop: float, dtype: torch.dtype) -> None:
    batch = packed(base(), [text_of(64) for _ in range(30)], [0, 1, 2] * 10)
    (stage,) = batch.stages
    dropout = dropout_of([1, 2, 3], drop, drop)
    tokens = dropout.on_tokens(torch.ones(len(batch.word), 32, dtype=dtype), stage)[: 64 * 30]
    attention = dropout.on_attention(ones_for(stage.buckets[0]).to(dtype), stage.buckets[0])
    for mask in (tokens, attention):
        assert mask.dtype == dtype
        dropped, scale = mask.unique().tolist()
        assert dropped == 0
        # The probability has 16 bits; bfloat16 has 8.
        assert scale == pytest.approx(1 / (1 - drop), rel=1e-4 if dtype == torch.float32 else 2**-8)
        share, n = mask.count_nonzero().item() / mask.numel(), mask.numel()
        # Five standard deviations of a frequency over n draws.
        assert share == pytest.approx(1 - drop, abs=5 * (drop * (1 - drop) / n) ** 0.5)


def test_logits_with_dropout_are_the_same_alone_and_in_a_mixture() -> None:
    """Checked through the whole forward pass, in which another mask would change logits by tenths."""
    rows = [far_row(base(), kind, seed=seed) for seed, kind in enumerate(("bitfit", "lora", "everything"))]
    texts = [text_of(length) for length in (60, 5, 17, 33, 8, 40, 16, 3, 64)]
    which = [0, 1, 2] * 3
    mixed = logits_of(base(), stack_rows(base(), rows), packed(base(), texts, which), dropout_of([0, 1, 2]))
    for row in range(3):
        places = [i for i, its in enumerate(which) if its == row]

        def answers(seed: int, row: int = row, places: list[int] = places) -> list[Tensor]:
            batch = packed(base(), [texts[i] for i in places], [0] * len(places))
            return logits_of(base(), stack_rows(base(), [rows[row]]), batch, dropout_of([seed]))

        for i, alone, other in zip(places, answers(row), answers(row + 7), strict=True):
            torch.testing.assert_close(mixed[i], alone, rtol=0, atol=1e-4)
            assert (mixed[i] - other).abs().max() > 1e-2
