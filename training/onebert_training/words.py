"""Words and tokens: cells of words and tags, where each word lies in the text, and which token answers for it."""

from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from onebert_encoder.tokens import Alignment, Span
from onebert_training.tables import parse_json


def words_of(cell: Any) -> list[str] | None:
    """The words of a cell: a list, a JSON list, or words joined by spaces; None where it is none of them."""
    if isinstance(cell, str) and cell.startswith('["'):
        with suppress(ValueError):
            cell = parse_json(cell)
    if isinstance(cell, str):
        return [word for word in cell.split(" ") if word]
    if isinstance(cell, list) and all(isinstance(word, str) for word in cell):
        return [word.strip() for word in cell]
    return None


def tags_of(cell: Any) -> list[Any]:
    """The tags in a cell: a list, a JSON list, or tags joined by spaces."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        with suppress(ValueError):
            cell = parse_json(cell)
    if isinstance(cell, list):
        return cell
    return [] if cell is None else str(cell).split()


def spans_of(words: Sequence[str]) -> tuple[Span, ...]:
    """Where each word lies in the words joined by single spaces."""
    spans, start = [], 0
    for word in words:
        spans.append((start, start + len(word)))
        start += len(word) + 1
    return tuple(spans)


def first_tokens(words: Sequence[Span], alignment: Alignment) -> list[int | None]:
    """Place of the first token that starts inside each word; None where there is none, as in what was cut off.

    Args:
        words: spans in the text, in order.
        alignment: of the text's tokens.
    """
    found: list[int | None] = [None] * len(words)
    word = 0
    for place, (start, end) in enumerate(alignment.offsets):
        if start == end:  # a special token, or one of whitespace alone
            continue
        while word < len(words) and words[word][1] <= start:
            word += 1
        if word < len(words) and words[word][0] <= start and found[word] is None:
            found[word] = place
    return found
