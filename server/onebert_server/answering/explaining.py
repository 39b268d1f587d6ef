"""Explains an answer: repeats the input without one of its words at a time."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from onebert_encoder.answering.results import Prediction
from onebert_encoder.answering.windows import whole_window, window_of
from onebert_encoder.explaining.words import Stretch, joined, removable, without, words_of
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Pieces, Text
from onebert_server import limits
from onebert_server.answering.reading import Question, Reading
from onebert_server.answering.tokenizing import characters_of
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput, TooLarge


class LeftOut(NamedTuple):
    """Stretches of an input, and the input without each of them."""

    stretches: list[Stretch]
    texts: list[Text]


def leave_out(questions: Sequence[Question], readings: Sequence[Reading], tokenizer: Tokenizer) -> list[LeftOut]:
    """Shortens each input by single words that the version has read; raises TooLarge if that is too much text."""
    texts, facts, asked = [one.text for one in questions], questions[0].facts, questions[0].asked
    words = [_words(one.pieces, reading, facts, tokenizer) for one, reading in zip(questions, readings, strict=True)]
    window = (window_of(facts, facts.max_length, asked) or whole_window(facts, facts.max_length)).tokens
    tokens = [one.tokens if one.windows is None else one.windows * window for one in readings]
    times = _times(texts, tokens, [len(one) for one in words])
    stretches = [removable(joined(own, most)) for own, most in zip(words, times, strict=True)]
    return [LeftOut(own, [without(text, one) for one in own]) for text, own in zip(texts, stretches, strict=True)]


def _words(pieces: Pieces | None, reading: Reading, facts: Facts, tokenizer: Tokenizer) -> list[Stretch]:
    if pieces is None:
        raise ValueError("an answer is explained with the pieces of its input")
    whole, tokenizer = tuple((0, length) for length in pieces.lengths), tokenizer.reading(facts.pooling)
    kept = tokenizer.fit(pieces, facts.max_length) if reading.windows is None else whole
    alignment = tokenizer.cut(pieces, kept, align=True).alignment
    return [] if alignment is None else words_of(alignment)


def _times(texts: Sequence[Text], tokens: Sequence[int], words: Sequence[int]) -> list[int]:
    """Returns the number of stretches that each input leaves out, within the bounds of one request."""
    characters = [characters_of(text) for text in texts]
    own = np.minimum(words, np.maximum(limits.MAX_LEFT_OUT_TOKENS // np.array(tokens), limits.MIN_LEFT_OUT))
    for most in range(limits.MAX_LEFT_OUT, limits.MIN_LEFT_OUT - 1, -1):
        times = np.minimum(own, most)
        if times @ characters <= limits.MAX_EXPLAINED_CHARACTERS and times @ tokens <= limits.MAX_EXPLAINED_TOKENS:
            return list(times.tolist())
    raise TooLarge(
        f"the inputs, each {limits.MIN_LEFT_OUT} times, are over {limits.MAX_EXPLAINED_CHARACTERS} characters or "
        f"over {limits.MAX_EXPLAINED_TOKENS} tokens; ask to explain fewer, or shorter ones"
    )


def prediction_of(reading: Reading, facts: Facts) -> Prediction:
    """Returns the answer about a whole text; raises InvalidInput if this task type has another kind of answer."""
    if not isinstance(reading.answer, Prediction):
        raise InvalidInput(f"{facts.ref} is a {facts.task_type} task, whose answers are not explained")
    return reading.answer
