"""Explains an answer: repeats the input without one of its words at a time."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.results import Prediction
from onebert_encoder.answering.scores import cut_rule
from onebert_encoder.answering.windows import whole_window, window_of
from onebert_encoder.explaining.words import (
    Explanation,
    Stretch,
    explain_by_occlusion,
    joined,
    removable,
    without,
    words_of,
)
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Pieces, Text
from onebert_server import limits
from onebert_server.access.context import Context
from onebert_server.answering.gateway import Wanted
from onebert_server.answering.reading import Reading
from onebert_server.answering.tokenizing import Tokenizing, characters_of
from onebert_server.fairness.places import PartByPart
from onebert_server.observed import Observed
from onebert_server.versions.facts import Facts
from onebert_store.errors import InvalidInput, TooLarge

Ask = Callable[[Context, Wanted, Sequence[Text], Callable[[int, Any], float]], Awaitable[list[float]]]
"""See `Answerer.answer`."""

# The cost of a piece of a text with words left out, in logits.
_PIECE_IN_NUMBERS = 8


class LeftOut(NamedTuple):
    """Stretches of an input, and the input without each of them."""

    stretches: list[Stretch]
    texts: list[Text]


async def explain(
    ask: Ask,
    workers: PartByPart,
    tokenizing: Tokenizing,
    context: Context,
    asked: Asked,
    texts: Sequence[Text],
    facts: Facts,
    readings: Sequence[Reading],
) -> list[Callable[[], Explanation]]:
    """Has the version that answered compute each text again, each time without one of its words; see `Answerer`."""
    predictions = [prediction_of(reading, facts) for reading in readings]
    principal, tokenizer = context.principal.name, tokenizing.splitters[facts.base].tokenizer
    whole = cut_rule(facts) == "ends" or any(reading.windows is not None for reading in readings)
    inputs = await tokenizing.split(principal, facts.base, texts, whole)
    # One piece of work: the number of words that each text leaves out depends on all texts.
    cost = _PIECE_IN_NUMBERS * sum(sum(pieces.lengths) for pieces in inputs)
    shortened = partial(leave_out, facts, asked, texts, inputs, readings, tokenizer)
    questions = await workers.run(principal, [cost], lambda _: shortened())
    left = iter(await _without(ask, context, facts, asked, predictions, questions))
    scores = [[next(left) for _ in question.texts] for question in questions]
    columns = zip(predictions, [question.stretches for question in questions], scores, strict=True)
    return [partial(explain_by_occlusion, *explained) for explained in columns]


async def _without(
    ask: Ask,
    context: Context,
    facts: Facts,
    asked: Asked,
    predictions: Sequence[Prediction],
    questions: Sequence[LeftOut],
) -> list[float]:
    """Returns the score of an answer's label without each word, of all questions in their order."""
    texts = [text for question in questions for text in question.texts]
    pairs = zip(predictions, questions, strict=True)
    best = [answer.best for answer, question in pairs for _ in question.texts]
    if not texts:
        return []
    # Quotas count these tokens but no request, and task metrics see nothing: no client asked these questions.
    observed = Observed(span=context.observed.span)
    wanted = Wanted([facts.ref] * len(texts), asked=replace(asked, top_k=1, only_scores=True))

    def read(index: int, answered: Any) -> float:
        return float(prediction_of(answered.read(), facts).scores[best[index]])

    scores = await ask(replace(context, requests=[], observed=observed), wanted, texts, read)
    context.observed.add(observed.seconds)
    return scores


def leave_out(
    facts: Facts,
    asked: Asked,
    texts: Sequence[Text],
    inputs: Sequence[Pieces],
    readings: Sequence[Reading],
    tokenizer: Tokenizer,
) -> list[LeftOut]:
    """Shortens each input by single words that the version has read; raises TooLarge if that is too much text."""
    words = [_words(pieces, reading, facts, tokenizer) for pieces, reading in zip(inputs, readings, strict=True)]
    window = (window_of(facts, facts.max_length, asked) or whole_window(facts, facts.max_length)).tokens
    tokens = [reading.tokens if reading.windows is None else reading.windows * window for reading in readings]
    times = _times(texts, tokens, [len(words_of_text) for words_of_text in words])
    stretches = [removable(joined(words_of_text, most)) for words_of_text, most in zip(words, times, strict=True)]
    return [
        LeftOut(left_out, [without(text, stretch) for stretch in left_out])
        for text, left_out in zip(texts, stretches, strict=True)
    ]


def _words(pieces: Pieces, reading: Reading, facts: Facts, tokenizer: Tokenizer) -> list[Stretch]:
    whole, tokenizer = tuple((0, length) for length in pieces.lengths), tokenizer.reading(facts.pooling)
    part = tokenizer.fit(pieces, facts.max_length, cut_rule(facts)) if reading.windows is None else whole
    alignment = tokenizer.cut(pieces, part, align=True).alignment
    return [] if alignment is None else words_of(alignment)


def _times(texts: Sequence[Text], tokens: Sequence[int], words: Sequence[int]) -> list[int]:
    """Returns the number of stretches that each input leaves out, within the bounds of one request."""
    characters = characters_of(texts)
    times = np.minimum(words, np.maximum(limits.MAX_LEFT_OUT_TOKENS // np.array(tokens), limits.MIN_LEFT_OUT))
    for most in range(limits.MAX_LEFT_OUT, limits.MIN_LEFT_OUT - 1, -1):
        times = np.minimum(times, most)
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
