"""Tokenizes texts, off the event loop unless they are tiny: principals round robin, and bounded."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from typing import NamedTuple, TypeVar

from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Pieces, Text
from onebert_server.fairness.places import PartByPart
from onebert_server.fairness.shares import Permits
from onebert_server.limits import MAX_CHARACTERS, MAX_TEXT

T = TypeVar("T", bound=Text)
R = TypeVar("R")

# Up to so many characters are tokenized on the event loop, in less than a third of a millisecond.
TINY_CHARACTERS = 512
# Characters after which a request lets others go first; one text is never divided.
PART_CHARACTERS = 2**14
# Pieces of one text: no tokenizer makes more than four of a character, one per byte.
MAX_PIECES = 4 * MAX_TEXT
# Workers that tokenize at the same time: one is left to read answers.
AT_ONCE = 3


class Splitter(NamedTuple):
    """The tokenizer of a base, and the base's longest sequence in tokens: no task takes more."""

    tokenizer: Tokenizer
    max_length: int


class Tokenizing:
    """Tokenizes texts; the splitters are keyed by the digest of their base."""

    def __init__(self, splitters: Mapping[str, Splitter], workers: Executor) -> None:
        self.splitters = splitters
        self._parts = PartByPart(workers, AT_ONCE, PART_CHARACTERS)
        self._permits = Permits(
            MAX_CHARACTERS, "as many texts wait to be tokenized as the server holds; try again soon"
        )

    async def split(
        self, principal: str, base: str, texts: Sequence[Text], whole: bool = False, placed: bool = True
    ) -> list[Pieces]:
        """Returns the pieces of each text for a base; equal texts share one object.

        With `whole` it keeps the pieces beyond the longest sequence, for windows, and unless they are `placed` no
        places in the text. Raises QueueFull if too many characters wait.
        """
        tokenizer, max_length = self.splitters[base]
        most = MAX_PIECES if whole else max_length
        return await self._each(principal, texts, lambda part: tokenizer.split(part, most, placed))

    async def ids(self, principal: str, base: str, texts: Sequence[str], whole: bool = False) -> list[list[int]]:
        """Like `split`, of single texts: their ids without special tokens, and one more than a sequence can have."""
        tokenizer, max_length = self.splitters[base]
        most = MAX_PIECES if whole else max_length + 1
        return await self._each(principal, texts, lambda part: [ids[:most] for ids in tokenizer.ids(part)])

    async def run(self, principal: str, costs: Sequence[int], work: Callable[[slice], list[R]]) -> list[R]:
        """See `PartByPart.run`; costs are in characters. Raises QueueFull if too many wait for workers."""
        if sum(costs) <= TINY_CHARACTERS:
            return work(slice(0, None))
        with self._permits.held(principal, sum(costs)):
            return await self._parts.run(principal, costs, work)

    async def _each(self, principal: str, texts: Sequence[T], work: Callable[[Sequence[T]], list[R]]) -> list[R]:
        """Returns the result for each text; equal ones are tokenized once."""
        distinct = list(dict.fromkeys(texts))
        made = await self.run(principal, characters_of(distinct), lambda part: work(distinct[part]))
        by_text = dict(zip(distinct, made, strict=True))
        return [by_text[text] for text in texts]


def characters_of(texts: Sequence[Text]) -> list[int]:
    """Returns the characters of each text, or of both texts of a pair."""
    return [len(text) if isinstance(text, str) else len(text[0]) + len(text[1]) for text in texts]
