"""Reads cells with answers that are spans of a context."""

from contextlib import suppress
from typing import Any

from onebert_store.tables.text.json_rows import parse_json

GoldAnswer = tuple[int, str]  # where the answer starts in the context, in code points, and its text


def answers_of(cell: Any) -> tuple[GoldAnswer, ...]:
    """The distinct answers of a cell; raises ValueError for a cell of another form or without an answer.

    Args:
        cell: `{"text": [...], "answer_start": [...]}` or a list of `{"text": ..., "answer_start": ...}`, or either as
            JSON.
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
