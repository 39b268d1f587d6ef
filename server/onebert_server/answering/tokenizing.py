"""Splits texts into pieces, off the event loop unless they are tiny: in turns of principals, and bounded."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Executor
from typing import NamedTuple

from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Pieces, Text, halves_of
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


Split = Mapping[str, Sequence[Pieces]]
"""The pieces of all texts of a request, by the digest of the base whose tokenizer made them."""


class Splitter(NamedTuple):
    """The tokenizer of a base, and the base's longest sequence in tokens: no task takes more."""

    tokenizer: Tokenizer
    max_length: int


class Tokenizing:
    """Splits texts into pieces; the splitters are keyed by the digest of their base."""

    def __init__(self, splitters: Mapping[str, Splitter], workers: Executor) -> None:
        self._splitters = splitters
        self._parts = PartByPart(workers, AT_ONCE, PART_CHARACTERS)
        self._permits = Permits(
            MAX_CHARACTERS, "as many texts wait to be tokenized as the server holds; try again soon"
        )

    async def split(self, principal: str, texts: Sequence[Text], whole: bool = False) -> dict[str, list[Pieces]]:
        """Returns the pieces of each text for each base, since no reference is resolved yet.

        Equal texts share one object, by which the engine finds shared work. With `whole` it keeps the pieces beyond the
        longest sequence, for windows. Raises QueueFull if too many characters wait.
        """
        return {base: await self._split(principal, texts, *one, whole) for base, one in self._splitters.items()}

    async def _split(
        self, principal: str, texts: Sequence[Text], tokenizer: Tokenizer, max_length: int, whole: bool
    ) -> list[Pieces]:
        most = MAX_PIECES if whole else max_length
        if len(texts) == 1 and characters_of(texts[0]) <= TINY_CHARACTERS:
            return tokenizer.split(texts, most)
        distinct = list(dict.fromkeys(texts))
        characters = sum(map(characters_of, distinct))
        if characters <= TINY_CHARACTERS:
            made = tokenizer.split(distinct, most)
        else:
            with self._permits.held(principal, characters):
                costs = [characters_of(text) for text in distinct]
                made = await self._parts.run(principal, costs, lambda part: tokenizer.split(distinct[part], most))
        by_text = dict(zip(distinct, made, strict=True))
        return [by_text[text] for text in texts]


def characters_of(text: Text) -> int:
    """Returns the characters of a text, or of both texts of a pair."""
    return sum(map(len, halves_of(text)))
