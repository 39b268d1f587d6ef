"""Answers that are spans of a context: cells of answers, their tokens, and SQuAD's exact match and F1."""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from onebert_encoder.tokens import Alignment
from onebert_training.tables import parse_json

GoldAnswer = tuple[int, str]  # where it starts in the context, in code points, and its text
CONTEXT = 1  # the half of the pair (question, context) that holds the answers

_PUNCTUATION = str.maketrans("", "", string.punctuation)


def answers_of(cell: Any) -> tuple[GoldAnswer, ...]:
    """The answers of a cell, without repetitions.

    Args:
        cell: `{"text": [...], "answer_start": [...]}` or a list of `{"text": ..., "answer_start": ...}`, or either
            as JSON.

    Raises:
        ValueError: it is neither, or holds no answer.
    """
    if isinstance(cell, str):
        with suppress(ValueError):
            cell = parse_json(cell)
    if isinstance(cell, dict):
        starts, texts = cell.get("answer_start"), cell.get("text")
        if not isinstance(starts, list) or not isinstance(texts, list) or len(starts) != len(texts):
            raise ValueError("the answers have no lists text and answer_start of one length")
        answers = list(zip(starts, texts, strict=True))
    elif isinstance(cell, list) and all(isinstance(answer, dict) for answer in cell):
        answers = [(answer.get("answer_start"), answer.get("text")) for answer in cell]
    else:
        raise ValueError('the answers are not of the form {"text": [...], "answer_start": [...]}')
    if not answers:
        raise ValueError("there is no answer, and every question needs one")
    if any(type(start) is not int or start < 0 or not isinstance(text, str) or not text for start, text in answers):
        raise ValueError("an answer has no text or no answer_start")
    return tuple(dict.fromkeys(answers))


def context_tokens(alignment: Alignment) -> range:
    """Places of the context's tokens in a pair."""
    places = [place for place, half in enumerate(alignment.sequences) if half == CONTEXT]
    return range(places[0], places[-1] + 1) if places else range(0)


def answer_tokens(answer: GoldAnswer, alignment: Alignment, truncated: bool) -> tuple[int, int] | None:
    """First and last token of an answer; None where it was cut off.

    Args:
        answer: in the context.
        alignment: of the pair's tokens.
        truncated: whether the pair was cut.
    """
    start, end = answer[0], answer[0] + len(answer[1])
    context, offsets = context_tokens(alignment), alignment.offsets
    if truncated and (not context or offsets[context[-1]][1] < end):
        return None
    inside = [place for place in context if max(start, offsets[place][0]) < min(end, offsets[place][1])]
    return (inside[0], inside[-1]) if inside else None


def normalize(text: str) -> list[str]:
    """The words that SQuAD v1.1's evaluation compares: lower case, without punctuation and articles."""
    return re.sub(r"\b(a|an|the)\b", " ", text.lower().translate(_PUNCTUATION)).split()


def exact_match(predicted: str, answer: str) -> float:
    """1 where both are equal once normalized."""
    return float(normalize(predicted) == normalize(answer))


def word_f1(predicted: str, answer: str) -> float:
    """F1 of the words that both share."""
    found, wanted = normalize(predicted), normalize(answer)
    shared = sum((Counter(found) & Counter(wanted)).values())
    return 2 * shared / (len(found) + len(wanted)) if shared else 0.0


def score_answers(gold: Sequence[Sequence[GoldAnswer]], predicted: Sequence[str]) -> dict[str, float]:
    """SQuAD v1.1's metrics (Rajpurkar et al. 2016, section 6.1): the mean of the best over the acceptable answers."""

    def mean_of_best(measure: Callable[[str, str], float]) -> float:
        best = [
            max(measure(text, answer) for _, answer in answers) for answers, text in zip(gold, predicted, strict=True)
        ]
        return sum(best) / len(best)

    return {"f1": mean_of_best(word_f1), "exact_match": mean_of_best(exact_match)}
