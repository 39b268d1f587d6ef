"""Reads the answers of many questions from their logits together, in this process, whichever computed them."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.answering.answer import answer, answer_texts
from onebert_encoder.answering.results import Answer
from onebert_encoder.answering.windows import WindowLogits, answer_windows, whole_window, window_of
from onebert_encoder.text.tokens import Alignment
from onebert_server.answering.plan import Question
from onebert_server.answering.tokenizing import Splitter
from onebert_store.errors import AnswerNotFinite


class Reading(NamedTuple):
    """An answer, and how its input was read.

    Attributes:
        truncated: whether some tokens of the input were left out.
        windows: number of windows; None if the input was not read by windows.
    """

    answer: Answer
    tokens: int
    truncated: bool
    windows: int | None = None


def read_together(
    questions: Sequence[Question],
    logits: NDArray[np.float32],
    sizes: NDArray[np.int32],
    splitters: Mapping[str, Splitter],
) -> list[Reading | AnswerNotFinite]:
    """Reads each question as if it were alone, bit for bit, but scores all of one kind at once.

    Args:
        logits: of all sequences of all questions, flat.
        sizes: for each sequence, its number of logits.
        splitters: by the digest of a base; its tokenizer aligns the tokens of a per-token task with the text.
    """
    readings: dict[int, Reading | AnswerNotFinite] = {}
    ends = np.cumsum(sizes)
    starts, stops, finite = (ends - sizes).tolist(), ends.tolist(), bool(np.isfinite(logits).all())
    alike: dict[tuple[object, int], tuple[list[int], list[int]]] = {}
    first = 0
    # No function of our own is called per text: most questions are one sequence of a task on whole texts.
    for number, question in enumerate(questions):
        own, first = slice(first, first + len(question.cuts)), first + len(question.cuts)
        start, kind = starts[own.start], question.facts.alike
        if not (finite or np.isfinite(logits[start : stops[own.stop - 1]]).all()):
            readings[number] = AnswerNotFinite(
                f"the answer of {question.facts.ref} to this input is not a finite number"
            )
        elif question.windows or kind is None:
            parts = [logits[start:stop] for start, stop in zip(starts[own], stops[own], strict=True)]
            readings[number] = _read_alone(question, parts, splitters[question.facts.base])
        else:
            # The options of one request are one object.
            numbers, places = alike.setdefault((kind, id(question.asked)), ([], []))
            numbers.append(number)
            places.append(start)
    for numbers, places in alike.values():
        texts = [questions[number] for number in numbers]
        rows = logits[np.array(places)[:, None] + np.arange(len(texts[0].facts.labels))]
        predictions = answer_texts(rows, texts[0].facts, [text.facts.labels for text in texts], texts[0].asked)
        for number, text, prediction in zip(numbers, texts, predictions, strict=True):
            readings[number] = Reading(prediction, text.tokens, text.truncated)
    return [readings[number] for number in range(len(questions))]


def _read_alone(question: Question, parts: Sequence[NDArray[np.float32]], splitter: Splitter) -> Reading:
    """Reads a question with an answer at places of its text, or with windows."""
    text, facts, asked, tokens, truncated, cuts, windows, pieces = question
    alignments: list[Alignment | None] = [None] * len(cuts)
    if facts.per_token and pieces is not None:
        tokenizer = splitter.tokenizer.reading(facts.pooling)
        alignments = [tokenizer.cut(pieces, cut, align=True).alignment for cut in cuts]
        parts = [part.reshape(-1, len(facts.labels)) for part in parts]
    if not windows:
        return Reading(answer(parts[0], facts, text, alignments[0], asked), tokens, truncated)
    window = window_of(facts, facts.max_length, asked) or whole_window(facts, facts.max_length)
    each = [WindowLogits(*one) for one in zip(parts, (cut[-1][0] for cut in cuts), alignments, strict=True)]
    return Reading(answer_windows(each, facts, text, window.reduction, asked), tokens, truncated, len(parts))
