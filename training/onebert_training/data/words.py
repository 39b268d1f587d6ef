"""Reads cells of words, and locates each word in the text."""

import re
from collections.abc import Sequence
from typing import Any

from onebert_encoder.text.tokens import Span
from onebert_store.tables.cells import Nested, parse_list

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
