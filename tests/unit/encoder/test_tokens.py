"""Our truncation against Hugging Face's own, for texts and pairs of every family."""

from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoTokenizer

from bases import tiny_base
from onebert_encoder.base import load_base
from onebert_encoder.tokens import Tokenizer

texts = st.text(max_size=40)
# Hugging Face drops an empty second text; a pair whose second half is empty is not a pair there.
pairs = st.tuples(texts, texts.filter(lambda text: text.strip() != ""))


@cache
def both(family: str) -> tuple[Tokenizer, Any]:
    return load_base(str(tiny_base(family))).tokenizer, AutoTokenizer.from_pretrained(tiny_base(family))


@given(family=st.sampled_from(["bert", "roberta"]), text=texts | pairs, max_length=st.integers(5, 40))
def test_ids_segments_and_truncation_are_hugging_faces(family: str, text: Any, max_length: int) -> None:
    ours, theirs = both(family)
    halves = (text,) if isinstance(text, str) else text
    whole = theirs(*halves, return_token_type_ids=True)
    cut = theirs(*halves, truncation="longest_first", max_length=max_length, return_token_type_ids=True)
    tokens = ours.encode([text], max_length)[0]
    assert tokens.input_ids == cut["input_ids"]
    assert tokens.type_ids == (cut["token_type_ids"] if family == "bert" else [0] * len(tokens))
    assert tokens.truncated == (len(whole["input_ids"]) > max_length)


def test_threads_with_different_lengths_do_not_disturb_each_other() -> None:
    ours, _ = both("bert")
    text = "the quick refund of a broken parcel " * 20

    def lengths(max_length: int) -> set[int]:
        return {len(ours.encode([text], max_length)[0]) for _ in range(50)}

    wanted = [5, 17, 33, 60]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lengths, wanted)) == [{length} for length in wanted]
