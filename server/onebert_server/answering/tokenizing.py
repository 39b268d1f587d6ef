"""Texts to pieces, off the event loop unless they are tiny: in turns of principals, and bounded in what waits."""

import asyncio
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor

from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Pieces, Text
from onebert_server.limits import MAX_CHARACTERS, MAX_TEXT
from onebert_server.permits import Permits
from onebert_server.turns import Places

# Texts of so many characters in all are tokenized on the event loop, which takes less than a third of a millisecond.
TINY_CHARACTERS = 512
# Characters after which a request's texts make way for others; one text is never divided.
PART_CHARACTERS = 2**14
# Pieces of one text: no tokenizer makes more than four of a character, its bytes.
MAX_PIECES = 4 * MAX_TEXT
# Workers that tokenize at the same time: one is left to read answers.
AT_ONCE = 3


class Tokenizing:
    """Splits the texts of requests.

    Args:
        tokenizer: the base's.
        max_length: tokens of the longest sequence that the base takes: no task is longer.
        workers: threads.
    """

    def __init__(self, tokenizer: Tokenizer, max_length: int, workers: Executor) -> None:
        self._tokenizer = tokenizer
        self._max_length = max_length
        self._workers = workers
        self._places = Places(AT_ONCE)
        self._permits = Permits(
            MAX_CHARACTERS, "as many texts wait to be tokenized as the server holds; try again soon"
        )

    async def split(self, principal: str, texts: Sequence[Text], whole: bool = False) -> list[Pieces]:
        """The pieces of each text; equal texts give the same object, by which the engine sees what it can share.

        Args:
            principal: whose they are.
            texts: texts or pairs.
            whole: whether pieces are kept that no sequence is long enough for; windows read them.

        Raises:
            QueueFull: as many characters wait as may; of one principal no more than are left for others.
        """
        most = MAX_PIECES if whole else self._max_length
        if len(texts) == 1 and _characters(texts[0]) <= TINY_CHARACTERS:
            return self._tokenizer.split(texts, most)
        distinct = list(dict.fromkeys(texts))
        characters = sum(map(_characters, distinct))
        if characters <= TINY_CHARACTERS:
            made = self._tokenizer.split(distinct, most)
        else:
            made = await self._in_turns(principal, distinct, characters, most)
        by_text = dict(zip(distinct, made, strict=True))
        return [by_text[text] for text in texts]

    async def _in_turns(self, principal: str, texts: Sequence[Text], characters: int, most: int) -> list[Pieces]:
        # Where the request is cancelled meanwhile, the part that a thread has begun is all that is still done.
        self._permits.take(principal, characters)
        made: list[Pieces] = []
        try:
            for part in _parts(texts):
                await self._places.take(principal)
                try:
                    made += await asyncio.wrap_future(self._workers.submit(self._tokenizer.split, part, most))
                finally:
                    self._places.give_back()
        finally:
            self._permits.give_back(principal, characters)
        return made


def _parts(texts: Sequence[Text]) -> Iterator[list[Text]]:
    part: list[Text] = []
    size = 0
    for text in texts:
        if part and size + _characters(text) > PART_CHARACTERS:
            yield part
            part, size = [], 0
        part.append(text)
        size += _characters(text)
    yield part


def _characters(text: Text) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
