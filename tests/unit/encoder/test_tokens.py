"""Truncation and alignment against Hugging Face's, for texts and pairs of every family."""

import unicodedata
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers.processors import RobertaProcessing
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from bases import tiny_base
from onebert_encoder.answering.stretches import find_words
from onebert_encoder.base.base import load_base
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Pieces
from onebert_store.errors import InvalidInput

texts = st.text(max_size=40) | st.text(alphabet="ae .\u0301\u0308\u20e3क\u093f", max_size=40)
# Hugging Face drops an empty second text; a pair whose second half is empty is not a pair there.
spaced = st.text(alphabet="ab, .é😀\t\n\u00a0", min_size=1, max_size=30).filter(str.strip)
specials = st.sampled_from(["a [SEP] b", "</s> a b <s>", ("[CLS]", "a </s> b"), ("a [SEP] b </s> c", "[SEP]")])
pairs = st.tuples(texts, texts.filter(lambda text: text.strip() != ""))


@cache
def both(family: str) -> tuple[Tokenizer, Any]:
    if family == "roberta-trimmed":
        return trimmed()
    return load_base(str(tiny_base(family))).tokenizer, AutoTokenizer.from_pretrained(tiny_base(family))


def trimmed() -> tuple[Tokenizer, Any]:
    """RoBERTa's own post-processor, which takes the spaces off the offsets; the fixture's leaves them on."""
    backend = AutoTokenizer.from_pretrained(tiny_base("roberta")).backend_tokenizer
    backend.post_processor = RobertaProcessing(("</s>", 2), ("<s>", 0), trim_offsets=True, add_prefix_space=False)
    copy = type(backend).from_str(backend.to_str())
    return Tokenizer(backend, has_types=False), PreTrainedTokenizerFast(tokenizer_object=copy)


@given(
    family=st.sampled_from(["bert", "roberta", "distilbert", "electra"]),
    text=texts | pairs | specials | st.tuples(spaced.map(lambda half: half * 3), spaced),
    lengths=st.lists(st.integers(5, 40), min_size=1, max_size=4),
)
def test_one_split_cut_to_any_length(family: str, text: Any, lengths: list[int]) -> None:
    """Ids and lengths of the halves are enough to cut a text, in a process that never sees it."""
    ours, theirs = both(family)
    halves = (text,) if isinstance(text, str) else text
    (pieces,) = ours.split([text], limit=max(lengths))
    elsewhere = Pieces(pieces.ids, pieces.lengths)
    whole = theirs(*halves)["input_ids"]
    for max_length in lengths:
        cut = theirs(*halves, truncation="longest_first", max_length=max_length, return_token_type_ids=True)
        tokens = ours.cut(elsewhere, ours.fit(elsewhere, max_length))
        assert tokens.input_ids == cut["input_ids"]
        assert tokens.type_ids == (cut["token_type_ids"] if family in ("bert", "electra") else [0] * len(tokens))
        assert tokens.truncated == (len(whole) > max_length)
        aligned = ours.cut(pieces, ours.fit(pieces, max_length), align=True)
        alone = ours.encode([text], max_length, align=True)[0]
        assert aligned.input_ids == alone.input_ids == tokens.input_ids
        assert (alone.type_ids, alone.truncated) == (tokens.type_ids, tokens.truncated)
        assert vars(aligned.alignment) == vars(alone.alignment)


@given(
    family=st.sampled_from(["bert", "roberta", "distilbert", "electra"]),
    text=texts | pairs | specials | st.tuples(spaced.map(lambda half: half * 3), spaced.map(lambda half: half * 3)),
    max_length=st.integers(5, 40),
)
def test_both_ends_together_fill_the_length(family: str, text: Any, max_length: int) -> None:
    ours, theirs = both(family)
    halves = (text,) if isinstance(text, str) else text
    cut = theirs(*halves, truncation="longest_first", max_length=max_length)
    (whole,), (cut_tokens,) = ours.encode([text], 10_000, align=True), ours.encode([text], max_length, True, "ends")
    places: list[int] = []
    for place in (None, *range(len(halves))):
        of_half = [at for at, sequence in enumerate(whole.alignment.sequences) if sequence == place]
        count = len(of_half) if place is None else cut.sequence_ids().count(place)
        last = count // 2 if count < len(of_half) else 0
        places += of_half[: count - last] + of_half[len(of_half) - last :]
    places.sort()
    assert cut_tokens.input_ids == [whole.input_ids[at] for at in places]
    assert cut_tokens.type_ids == [whole.type_ids[at] for at in places]
    assert (len(cut_tokens), cut_tokens.truncated) == (len(cut["input_ids"]), len(whole) > max_length)
    assert cut_tokens.alignment.sequences == [whole.alignment.sequences[at] for at in places]
    assert cut_tokens.alignment.words == [whole.alignment.words[at] for at in places]
    spans = zip(cut_tokens.alignment.offsets, [whole.alignment.offsets[at] for at in places], strict=True)
    assert all(of_half == other or of_half[0] == of_half[1] for of_half, other in spans)


def test_a_length_without_room_for_the_special_tokens_is_refused() -> None:
    """Four of them in a pair of RoBERTa's; three is the least that a task may take."""
    ours, _ = both("roberta")
    assert len(ours.encode([("a", "b")], 4)[0]) == 4
    with pytest.raises(InvalidInput, match="3 tokens hold not even the special tokens"):
        ours.encode([("a", "b")], 3)


@given(
    family=st.sampled_from(["bert", "roberta", "roberta-trimmed"]),
    text=texts | pairs | st.tuples(spaced, spaced) | spaced | specials,
    max_length=st.integers(5, 40),
)
def test_tokens_lie_where_hugging_face_says(family: str, text: Any, max_length: int) -> None:
    ours, theirs = both(family)
    halves = (text,) if isinstance(text, str) else text
    cut = theirs(*halves, truncation="longest_first", max_length=max_length, return_offsets_mapping=True)
    (tokens,) = ours.encode([text], max_length, align=True)
    assert tokens.input_ids == cut["input_ids"]
    alignment = tokens.alignment
    assert alignment.sequences == cut.sequence_ids(0)
    assert alignment.words == cut.word_ids(0)
    uncut = [theirs(each, return_offsets_mapping=True)["offset_mapping"] for each in halves]
    theirs_of = [[span for span in spans if span != (0, 0)] for spans in uncut]
    end = {0: 0, 1: 0}
    for (start, stop), half, (a, b) in zip(alignment.offsets, alignment.sequences, cut["offset_mapping"], strict=True):
        if half is None:
            assert (start, stop) == (a, b) == (0, 0)
            continue
        # Theirs may have whitespace around it; a token of nothing else is empty, where the one before it ended. Ours
        # has the marks that no token of theirs has.
        piece = halves[half][a:b].strip()
        assert halves[half][start:stop].startswith(piece)
        marks = range(start + len(piece), stop)
        assert all(unicodedata.category(halves[half][at]) in ("Mn", "Me") for at in marks)
        assert not any(first <= at < last for first, last in theirs_of[half] for at in marks)
        assert (start, stop) == (end[half], end[half]) if start == stop else a <= start < stop
        end[half] = stop


@given(family=st.sampled_from(["bert", "roberta"]), pair=st.tuples(spaced, spaced), max_length=st.integers(5, 40))
def test_siamese_texts_are_tokenized_as_hugging_face_does(family: str, pair: tuple[str, str], max_length: int) -> None:
    ours, theirs = both(family)
    tokens = ours.reading("siamese").encode([pair], max_length, align=True)[0]
    whole = [theirs(half)["input_ids"] for half in pair]
    cut = [theirs(half, truncation=True, max_length=max_length)["input_ids"] for half in pair]
    assert [tokens.input_ids[: tokens.second], tokens.input_ids[tokens.second :]] == cut
    assert tokens.input_ids == [token for half in cut for token in half]
    assert tokens.type_ids == [0] * len(tokens)
    assert tokens.truncated == (whole != cut)
    assert len(tokens.alignment.offsets) == len(tokens)
    for (start, end), half in zip(tokens.alignment.offsets, tokens.alignment.sequences, strict=True):
        assert start == end or pair[half or 0][start:end].strip() == pair[half or 0][start:end]
    # Tokens of the second text say so.
    assert {half for half in tokens.alignment.sequences[: tokens.second] if half is not None} <= {0}
    assert {half for half in tokens.alignment.sequences[tokens.second :] if half is not None} <= {1}


def test_a_single_text_is_no_siamese_pair() -> None:
    with pytest.raises(InvalidInput, match="takes a pair, not a single text"):
        both("bert")[0].reading("siamese").encode(["good"], 20)


@pytest.mark.parametrize(
    "text",
    [
        "call Jose\u0301 or Nguye\u0302\u0303n",
        "मैं हिन्दी बोलता हूँ",
        "ที่ นี่",
        "حمدٌ قال",
        "I \u2764\ufe0f it 1\ufe0f\u20e3",
        "a\u0301\u0302",
    ],
)
def test_a_word_has_the_combining_marks_at_its_end(text: str) -> None:
    """A base that strips accents has no token for them."""
    ours, _ = both("bert")
    (tokens,) = ours.encode([text], 60, align=True)
    assert [text[start:end] for start, end in find_words(tokens.alignment)[1]] == text.split()


def test_threads_with_different_lengths_do_not_disturb_each_other() -> None:
    ours, _ = both("bert")
    text = "the quick refund of a broken parcel " * 20

    def lengths(max_length: int) -> set[int]:
        return {len(ours.encode([text], max_length)[0]) for _ in range(50)}

    wanted = [5, 17, 33, 60]
    with ThreadPoolExecutor(4) as threads:
        assert list(threads.map(lengths, wanted)) == [{length} for length in wanted]
