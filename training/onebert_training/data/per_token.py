"""Reads the cells of per-token tasks: words with their places in the text, and answers that are spans of a context."""

import re
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from onebert_encoder.text.tokens import Span
from onebert_store.tables.cells import Nested, parse_list
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


# A sentence may start with a bracket, but not like this: only a written list does.
_LIST = re.compile(r"""(?:array\()?\[\s*(?:['"]|np\.)""")


def words_of(cell: Any) -> list[str] | None:
    """The words of a cell: a list, a list written as text, or words joined by spaces; None for any other cell."""
    if isinstance(cell, str) and _LIST.match(cell):
        try:
            cell = parse_list(cell) or cell
        except Nested:
            return None
    if isinstance(cell, str):
        return [word for word in cell.split(" ") if word]
    if isinstance(cell, list) and all(isinstance(word, str) for word in cell):
        return [word.strip() for word in cell]
    return None


def spans_of(words: Sequence[str]) -> tuple[Span, ...]:
    """The span of each word in the text that joins the words by single spaces."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return tuple(spans)
