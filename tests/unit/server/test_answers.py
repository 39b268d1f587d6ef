"""Tokenizing once: the same ids as alone, and one object wherever sharing is right."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bases import WORDS, tiny_base
from onebert_encoder.base import load_base
from onebert_server.answers import tokenize


@pytest.fixture(scope="module")
def tokenizer():
    return load_base(str(tiny_base())).tokenizer


sentences = st.lists(st.sampled_from(WORDS), min_size=1, max_size=20).map(" ".join)
texts = sentences | st.tuples(sentences, sentences)


@given(st.lists(st.tuples(texts, st.integers(5, 30)), min_size=1, max_size=8), st.data())
def test_equal_to_each_alone_and_shared_where_uncut(tokenizer, wanted, data):
    wanted += data.draw(st.lists(st.tuples(st.sampled_from([text for text, _ in wanted]), st.integers(5, 30))))
    made = tokenize(tokenizer, [text for text, _ in wanted], [length for _, length in wanted])
    for (text, length), tokens in zip(wanted, made, strict=True):
        (alone,) = tokenizer.encode([text], length)
        assert (tokens.input_ids, tokens.type_ids, tokens.truncated) == (
            alone.input_ids,
            alone.type_ids,
            alone.truncated,
        )
    for i, (text, length) in enumerate(wanted):
        for j, (other, other_length) in enumerate(wanted):
            uncut = not made[i].truncated and not made[j].truncated
            assert (made[i] is made[j]) == (text == other and (length == other_length or uncut))
