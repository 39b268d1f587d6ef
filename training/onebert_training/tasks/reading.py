"""Notes on how well the base can read the training texts."""

from collections import Counter
from collections.abc import Sequence

from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Tokens
from onebert_training.data.checks import listed
from onebert_training.data.dataset import Dataset
from onebert_training.tasks.alignment import first_tokens

_LOOKED_AT = 1000  # texts, evenly taken; all texts are searched for words without a token


def reading_notes(data: Dataset, tokenizer: Tokenizer, max_length: int, tokens: Sequence[Tokens]) -> list[str]:
    """Notes on unknown tokens, on texts that are almost entirely cut off, and on tagged words without a token."""
    texts, notes = data.splits["train"].texts, list[str]()
    pieces = tokenizer.split(texts[:: len(texts) // _LOOKED_AT + 1], max_length, placed=False)
    ids = [half for one in pieces for half in one.ids]
    unknown, read = sum(token == tokenizer.unknown for half in ids for token in half), sum(map(len, ids))
    if unknown * 10 > read:
        notes.append(
            f"{unknown / read:.0%} of the tokens of the training texts are unknown to the base, which reads nothing in "
            "them; --base names one for their language"
        )
    if short := [one for one in pieces if sum(one.lengths) >= max_length * 20]:
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
    """Counts the tags other than `O` of words without a token; words after the cut are left out."""
    found, split = Counter[str](), data.splits["train"]
    for gold, words, text in zip(split.gold, split.words, tokens, strict=True):
        positions = first_tokens(words, text.alignment) if text.alignment else []
        seen = max((place for place, position in enumerate(positions) if position is not None), default=0)
        read = seen if text.truncated else len(positions)
        lost = (tag for tag, position in zip(gold[:read], positions, strict=False) if position is None)
        found.update(data.labels[tag] for tag in lost if data.labels[tag] != "O")
    return found
