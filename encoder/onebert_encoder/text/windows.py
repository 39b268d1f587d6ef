"""Divides a text that is too long for one sequence into windows: sequences that overlap."""

from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Cut, Pieces
from onebert_store.errors import InvalidInput, TooLarge

MAX_WINDOWS = 256
"""Most windows of one text."""


def window_cuts(tokenizer: Tokenizer, pieces: Pieces, tokens: int, overlap: int) -> list[Cut]:
    """The pieces of each window, at least one; each window of a pair has the whole first text.

    Windows start where Hugging Face tokenizers start theirs (`stride` is `overlap`); all but the last have `tokens`
    tokens, special tokens and the first text of a pair included. For errors see `window_count`.
    """
    *first_text, length = pieces.lengths
    count, room = window_count(tokenizer, pieces, tokens, overlap)
    starts = [number * (room - overlap) for number in range(count)]
    prefix = [(0, length) for length in first_text]
    return [(*prefix, (start, min(start + room, length))) for start in starts]


def window_count(tokenizer: Tokenizer, pieces: Pieces, tokens: int, overlap: int) -> tuple[int, int]:
    """The number of windows, by lengths alone, and of the last text's pieces that each but the last window has.

    Raises:
        InvalidInput: special tokens, first text and overlap leave no room, or the task takes only pairs.
        TooLarge: more than `MAX_WINDOWS`.
    """
    *first_text, length = pieces.lengths
    room = tokenizer.room_behind(first_text, tokens)
    if length > room and room <= overlap:
        fixed = "the special tokens and the first text of the pair" if first_text else "the special tokens"
        raise InvalidInput(f"a window of {tokens} tokens has no room beside {fixed} and the overlap of {overlap}")
    count = 1 if length <= room else 1 + -(-(length - room) // (room - overlap))
    if count > MAX_WINDOWS:
        raise TooLarge(f"a text would be read in {count} windows, and {MAX_WINDOWS} are the most; send it in parts")
    return count, room
