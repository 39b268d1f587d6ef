"""Finds the token that stands for a word, and the tokens of an answer in a context."""

from collections.abc import Sequence

from onebert_encoder.text.tokens import Alignment, Span
from onebert_training.data.per_token import GoldAnswer

CONTEXT = 1  # the half of the pair (question, context) that holds the answers


def first_tokens(words: Sequence[Span], alignment: Alignment) -> list[int | None]:
    """Position of the first token inside each word, in the text's order; None for a word without one (cut off)."""
    found: list[int | None] = [None] * len(words)
    word = 0
    for position, (start, end) in enumerate(alignment.offsets):
        if start == end:  # a special token, or one of whitespace alone
            continue
        while word < len(words) and words[word][1] <= start:
            word += 1
        if word < len(words) and words[word][0] <= start and found[word] is None:
            found[word] = position
    return found


def context_tokens(alignment: Alignment) -> range:
    """Positions of the context's tokens in a pair."""
    positions = [position for position, half in enumerate(alignment.sequences) if half == CONTEXT]
    return range(positions[0], positions[-1] + 1) if positions else range(0)


def answer_tokens(answer: GoldAnswer, alignment: Alignment, truncated: bool) -> tuple[int, int] | None:
    """First and last token of an answer in a pair; None if the answer was cut off."""
    start, end = answer[0], answer[0] + len(answer[1])
    context, offsets = context_tokens(alignment), alignment.offsets
    if truncated and (not context or offsets[context[-1]][1] < end):
        return None
    inside = [position for position in context if max(start, offsets[position][0]) < min(end, offsets[position][1])]
    return (inside[0], inside[-1]) if inside else None
