"""The tokens that stand for words and answers, and notes on how well the base can read the training texts."""

from collections import Counter
from collections.abc import Sequence

from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Alignment, Span, Tokens
from onebert_training.data.checks import listed
from onebert_training.data.dataset import Dataset
from onebert_training.data.examples import GoldAnswer

CONTEXT = 1  # the half of the pair (question, context) that holds the answers


def first_tokens(words: Sequence[Span], alignment: Alignment) -> list[int | None]:
    """Position of the first token inside each word, in the text's order; None for a word without one (cut off)."""
    positions: list[int | None] = [None] * len(words)
    word = 0
    for position, (start, end) in enumerate(alignment.offsets):
        if start == end:  # a special token, or one of whitespace alone
            continue
        while word < len(words) and words[word][1] <= start:
            word += 1
        if word < len(words) and words[word][0] <= start and positions[word] is None:
            positions[word] = position
    return positions


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


_LOOKED_AT = 1000  # texts, evenly taken; all texts are searched for words without a token


def reading_notes(data: Dataset, tokenizer: Tokenizer, max_length: int, tokens: Sequence[Tokens]) -> list[str]:
    """Notes on unknown tokens, on texts that are almost entirely cut off, and on tagged words without a token."""
    texts, notes = data.splits["train"].texts, list[str]()
    pieces = tokenizer.split(texts[:: len(texts) // _LOOKED_AT + 1], max_length, placed=False)
    ids = [half for text_pieces in pieces for half in text_pieces.ids]
    unknown, read = sum(token == tokenizer.unknown for half in ids for token in half), sum(map(len, ids))
    if unknown * 10 > read:
        notes.append(
            f"{unknown / read:.0%} of the tokens of the training texts are unknown to the base, which reads nothing in "
            "them; --base names one for their language"
        )
    if short := [text_pieces for text_pieces in pieces if sum(text_pieces.lengths) >= max_length * 20]:
        share = f"{len(short) / len(pieces):.0%}"
        notes.append(f"a twentieth or less is read of {share} of the training texts; --max-length reads more")
    if data.task_type == "token" and (lost := _lost_tags(data, tokens)):
        each = listed(lost, [f"{count:,}" for count in lost.values()])
        notes.append(
            f"{sum(lost.values()):,} words have no token: their tags are not learned, and count as missed where they "
            f"are measured: {each}"
        )
    return notes


def _lost_tags(data: Dataset, tokens: Sequence[Tokens]) -> Counter[str]:
    """Counts the tags other than `O` of words without a token; words after the cut are skipped."""
    counts, split = Counter[str](), data.splits["train"]
    for gold, words, text in zip(split.gold, split.words, tokens, strict=True):
        positions = first_tokens(words, text.alignment) if text.alignment else []
        last_read = max((place for place, position in enumerate(positions) if position is not None), default=0)
        read = last_read if text.truncated else len(positions)
        lost = (tag for tag, position in zip(gold[:read], positions, strict=False) if position is None)
        counts.update(data.labels[tag] for tag in lost if data.labels[tag] != "O")
    return counts
