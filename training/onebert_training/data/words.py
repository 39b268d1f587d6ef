"""Words: cells of words, and where each word lies in the text."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from onebert_encoder.text.tokens import Span
from onebert_store.tables.text.json_rows import parse_json


def words_of(cell: Any) -> list[str] | None:
    """The words of a cell: a list, a JSON list, or words joined by spaces; None if the cell is none of these."""
    if isinstance(cell, str) and cell.startswith('["'):
        with suppress(ValueError):
            cell = parse_json(cell)
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
