"""Splits texts into pieces, off the event loop unless they are tiny: in turns of principals, and bounded."""

from collections.abc import Sequence
from concurrent.futures import Executor

from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Pieces, Text
from onebert_server.fairness.places import PartByPart
from onebert_server.fairness.shares import Permits
from onebert_server.limits import MAX_CHARACTERS, MAX_TEXT

# Up to so many characters are tokenized on the event loop, in less than a third of a millisecond.
TINY_CHARACTERS = 512
# Characters after which a request lets others go first; one text is never divided.
PART_CHARACTERS = 2**14
# Pieces of one text: no tokenizer makes more than four of a character, one per byte.
MAX_PIECES = 4 * MAX_TEXT
# Workers that tokenize at the same time: one is left to read answers.
AT_ONCE = 3


class Tokenizing:
    """Splits texts into pieces; `max_length` is the base's longest sequence in tokens, and no task takes more."""

    def __init__(self, tokenizer: Tokenizer, max_length: int, workers: Executor) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._parts = PartByPart(workers, AT_ONCE, PART_CHARACTERS)
        self._permits = Permits(
            MAX_CHARACTERS, "as many texts wait to be tokenized as the server holds; try again soon"
        )

    async def split(self, principal: str, texts: Sequence[Text], whole: bool = False) -> list[Pieces]:
        """Returns the pieces of each text; equal texts share one object, by which the engine finds shared work.

        With `whole` it keeps the pieces beyond the longest sequence, for windows. Raises QueueFull if too many
        characters wait.
        """
        most = MAX_PIECES if whole else self._max_length
        if len(texts) == 1 and characters_of(texts[0]) <= TINY_CHARACTERS:
            return self._tokenizer.split(texts, most)
        distinct = list(dict.fromkeys(texts))
        characters = sum(map(characters_of, distinct))
        if characters <= TINY_CHARACTERS:
            made = self._tokenizer.split(distinct, most)
        else:
            with self._permits.held(principal, characters):
                costs = [characters_of(text) for text in distinct]
                made = await self._parts.run(principal, costs, lambda part: self._tokenizer.split(distinct[part], most))
        by_text = dict(zip(distinct, made, strict=True))
        return [by_text[text] for text in texts]


def characters_of(text: Text) -> int:
    """Returns the characters of a text, or of both texts of a pair."""
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
