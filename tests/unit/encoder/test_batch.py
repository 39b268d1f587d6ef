"""Packing: every token stands once, in its own sequence, with its own row; and which layers sequences share."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from bases import Reference, far_row, far_task, loaded, tiny_base
from bases import loaded as base
from batches import logits_of, packed
from onebert_encoder.layout.shapes import round_up
from onebert_encoder.maths.batch import BASE_ROW
from onebert_encoder.maths.encode import encode
from onebert_encoder.maths.rows import stack_rows
from onebert_encoder.text.tokens import Tokens

LAYERS = 3


def tokens(length: int, start: int = 0, second: int = 0) -> Tokens:
    return Tokens([(start + i) % 60 for i in range(length)], [0] * length, second=second)


sequences = st.lists(st.tuples(st.integers(1, 64), st.integers(1, 5)), min_size=1, max_size=40)


@given(sequences)
def test_each_sequence_keeps_its_tokens_positions_and_row(drawn: list[tuple[int, int]]) -> None:
    texts = [tokens(length, start=i) for i, (length, _) in enumerate(drawn)]
    batch = packed(base(), texts, [row for _, row in drawn])
    (stage,) = batch.stages
    assert len(batch.word) == round_up(sum(length for length, _ in drawn))
    for text, row, first in zip(texts, batch.rows, batch.first.tolist(), strict=True):
        span = slice(first, first + len(text))
        assert batch.word[span].tolist() == text.input_ids
        assert batch.position[span].tolist() == list(range(len(text)))
        assert set(stage.row_of_token[span].tolist()) == {row}


@given(sequences)
def test_buckets_and_runs_cover_the_tokens_without_gaps(drawn: list[tuple[int, int]]) -> None:
    batch = packed(base(), [tokens(length) for length, _ in drawn], [row for _, row in drawn])
    (stage,) = batch.stages
    num_tokens = sum(length for length, _ in drawn)
    assert stage.buckets[-1].stop == num_tokens
    assert stage.spans[-1][2] == num_tokens + stage.filling == len(stage.row_of_token)
    for edges in ([(b.start, b.stop) for b in stage.buckets], [(start, stop) for _, start, stop in stage.spans]):
        assert edges[0][0] == 0
        assert all(before[1] == after[0] for before, after in pairwise(edges))
    for row, start, stop in stage.spans:
        assert set(stage.row_of_token[start:stop].tolist()) == {row}
    # Buckets bound padding: no sequence is padded to more than twice its length, or to 16 tokens if that is more.
    for bucket in stage.buckets:
        assert bucket.count * bucket.length <= 2 * (bucket.stop - bucket.start) + 16 * bucket.count


@given(st.lists(st.tuples(st.integers(0, 3), st.integers(1, 6)), min_size=1, max_size=30))
def test_sharing_gives_every_sequence_its_own_text_and_row_at_the_end(drawn: list[tuple[int, int]]) -> None:
    texts = [tokens(5 + 9 * i, start=7 * i) for i in range(4)]
    # Row r leaves the base at layer (r - 1) // 2, so rows 5 and 6 leave at 2 and row 1 at once.
    part_of = {row: (row - 1) // 2 for row in range(1, 7)}
    chosen, rows = [texts[i] for i, _ in drawn], [row for _, row in drawn]
    batch = packed(base(), chosen, rows, [part_of[row] for row in rows])
    word = batch.word
    for stage in batch.stages:
        word = word if stage.source is None else word[stage.source]
    last = batch.stages[-1]
    for text, row, first in zip(chosen, rows, batch.first.tolist(), strict=True):
        span = slice(first, first + len(text))
        assert word[span].tolist() == text.input_ids
        assert set(last.row_of_token[span].tolist()) == {row}
    # A row runs no layer below the one where it leaves the base, unless it has a text that nobody else has.
    alone = {row for text, row in zip(chosen, rows, strict=True) if chosen.count(text) == 1}
    for stage in batch.stages:
        for row in set(stage.row_of_token.tolist()) - {BASE_ROW} - alone:
            assert part_of[row] <= stage.layers.start


@given(st.integers(1, 20_000))
def test_the_filling_stays_small(tokens: int) -> None:
    filling = round_up(tokens) - tokens
    assert 0 <= filling < 128
    assert filling < max(8, 0.5 * tokens if tokens < 128 else 0.25 * tokens)


def test_a_shared_text_is_computed_once_up_to_where_its_tasks_part() -> None:
    text = tokens(10)
    batch = packed(base(), [text] * 8, list(range(1, 9)), [2] * 8)
    assert [(stage.layers, len(stage.row_of_token)) for stage in batch.stages] == [
        (range(2), round_up(10)),
        (range(2, 3), round_up(80)),
    ]
    assert batch.computed_tokens == (2 * 10 + 80) / 3
    frozen = packed(base(), [text] * 8, list(range(1, 9)), [LAYERS] * 8)
    assert [(stage.layers, len(stage.row_of_token)) for stage in frozen.stages] == [(range(3), round_up(10))]


def test_masks_hide_exactly_the_padding() -> None:
    batch = packed(base(), [tokens(9), tokens(4), tokens(4)], [1, 1, 2])
    (bucket,) = batch.stages[0].buckets
    lengths = sorted(torch.isfinite(bucket.mask).sum(-1).flatten().tolist())
    assert lengths == [4, 4, 9]


@given(sequences, st.integers(0, LAYERS))
def test_a_batch_that_enters_above_takes_every_token_from_its_place(drawn: list[tuple[int, int]], low: int) -> None:
    texts = [tokens(length, start=i) for i, (length, _) in enumerate(drawn)]
    batch = packed(base(), texts, [row for _, row in drawn], layers=range(low, LAYERS))
    (stage,) = batch.stages
    assert stage.layers == range(low, LAYERS)
    if low == 0:
        assert stage.source is None
        return
    given_ids = torch.tensor([number for text in texts for number in text.input_ids])[stage.source]
    for text, first in zip(texts, batch.first.tolist(), strict=True):
        assert given_ids[first : first + len(text)].tolist() == text.input_ids


@given(st.lists(st.integers(1, 60), min_size=1, max_size=12), st.integers(1, LAYERS))
def test_layers_in_two_parts_are_the_layers_at_once(lengths: list[int], low: int) -> None:
    texts = [tokens(length, start=i) for i, length in enumerate(lengths)]
    which = [i % 2 for i in range(len(texts))]
    rows = stack_rows(base(), [far_row(base(), kind, "none", 3, 1) for kind in ("everything", "bitfit")])
    with torch.no_grad():
        whole = logits_of(base(), rows, packed(base(), texts, which))
        below = packed(base(), texts, which, layers=range(low))
        assert [layer for stage in below.stages for layer in stage.layers] == list(range(low))
        x = encode(base(), rows, below)
        halfway = torch.cat([x[at : at + n] for at, n in zip(below.first.tolist(), lengths, strict=True)])
        above = packed(base(), texts, which, layers=range(low, LAYERS))
        parts = logits_of(base(), rows, above, activations=halfway)
    for part, other in zip(parts, whole, strict=True):
        torch.testing.assert_close(part, other, rtol=0, atol=1e-5)


@pytest.mark.parametrize("family", ["bert", "roberta", "xlm-roberta"])
def test_a_typed_padding_token_is_read_as_transformers_reads_it(family: str) -> None:
    """In RoBERTa's families it has the position before the first, and the tokens behind it are not moved on."""
    base = loaded(family)
    pad = "[PAD]" if family == "bert" else "<pad>"
    typed = [f"{pad} late", f"a{pad}{pad}b", "late", pad, (f"a{pad}", f"{pad}b late")]
    texts = [tokens for tokens in base.tokenizer.encode(typed, 40) for _ in range(2)]
    assert sum(tokens.input_ids.count(base.config.padding_id) for tokens in texts) == 2 * 6
    folded, tensors = zip(*(far_task(base, kind, "mean", 3, seed=1) for kind in ("spafit", "bitfit")), strict=True)
    rows = stack_rows(base, folded)
    which = [0, 1] * len(typed)
    with torch.no_grad():
        together = logits_of(base, rows, packed(base, texts, which))
        alone = [
            logits_of(base, rows, packed(base, [tokens], [row]))[0] for tokens, row in zip(texts, which, strict=True)
        ]
    models = [Reference(tiny_base(family), each, "mean") for each in tensors]
    for text, row, *ours in zip(texts, which, together, alone, strict=True):
        theirs = models[row].logits(text.input_ids, text.type_ids)
        for logits in ours:
            torch.testing.assert_close(logits, theirs, rtol=0, atol=1e-4)
