"""Texts to pieces, off the event loop unless they are tiny, and a bound on what waits for that."""

import asyncio
from collections.abc import Sequence
from concurrent.futures import Executor
from functools import partial

from onebert_encoder.text.tokens import Pieces, Text, Tokenizer
from onebert_server.limits import MAX_CHARACTERS
from onebert_server.permits import Permits

# Texts of so many characters in all are tokenized on the event loop, which takes less than a third of a millisecond.
TINY_CHARACTERS = 512


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
        self._permits = Permits(
            MAX_CHARACTERS, "as many texts wait to be tokenized as the server holds; try again soon"
        )

    async def split(self, principal: str, texts: Sequence[Text]) -> list[Pieces]:
        """The pieces of each text; equal texts give the same object, by which the engine sees what it can share.

        Raises:
            QueueFull: as many characters wait as may; of one principal no more than are left for others.
        """
        if len(texts) == 1 and _characters(texts[0]) <= TINY_CHARACTERS:
            return self._tokenizer.split(texts, self._max_length)
        distinct = list(dict.fromkeys(texts))
        work = partial(self._tokenizer.split, distinct, self._max_length)
        characters = sum(map(_characters, distinct))
        if characters <= TINY_CHARACTERS:
            made = work()
        else:
            self._permits.take(principal, characters)
            future = self._workers.submit(work)
            # Given back when the thread is done, and not when the request ends: a request may be cancelled meanwhile.
            future.add_done_callback(lambda _: self._permits.give_back(principal, characters))
            made = await asyncio.wrap_future(future)
        by_text = dict(zip(distinct, made, strict=True))
        return [by_text[text] for text in texts]


def _characters(text: Text) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
