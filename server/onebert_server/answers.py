"""From texts and pinned versions to answers: tokenize off the event loop, submit to the engine, read the logits."""

import asyncio
from collections import defaultdict
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from typing import TypeVar

from onebert_encoder.base import Base
from onebert_encoder.predict import Prediction, answer
from onebert_encoder.tokens import Text, Tokenizer, Tokens
from onebert_server.directory import Directory, Resident
from onebert_server.engine import Engine, Item

T = TypeVar("T")

# About what the event loop may do itself: below a third of a millisecond.
TINY_CHARACTERS = 512
TINY_ANSWERS = 16


class Answerer:
    """Answers for any mix of tasks; every answer is by the version that was pinned for it."""

    def __init__(self, base: Base, engine: Engine, directory: Directory, workers: Executor) -> None:
        self._tokenizer = base.tokenizer
        self._engine = engine
        self._directory = directory
        self._workers = workers

    async def answer(
        self, residents: Sequence[Resident], texts: Sequence[Text], top_k: int | None
    ) -> list[tuple[Prediction, Tokens]]:
        """Answers the i-th text with the i-th version, and unpins all of them.

        Raises:
            QueueFull, ShuttingDown: nothing was computed.
            EngineFailed, NotFinite: an answer could not be computed.
        """
        try:
            lengths = [resident.record.manifest.max_length for resident in residents]
            tiny = sum(map(_characters, set(texts))) <= TINY_CHARACTERS
            tokens = await self._run(tiny, lambda: tokenize(self._tokenizer, texts, lengths))
            items = [Item(one, resident.slot) for one, resident in zip(tokens, residents, strict=True)]
            future = self._engine.submit(items)
        except BaseException:
            self._directory.unpin(residents)
            raise
        # Not when the request ends: it may end early, and the engine still reads the rows.
        future.add_done_callback(lambda _: self._directory.unpin(residents))
        # Shielded, for the same reason: a request that is cancelled lets its batch finish.
        logits = await asyncio.shield(asyncio.wrap_future(future))
        predictions = await self._run(
            len(logits) <= TINY_ANSWERS,
            lambda: [
                answer(row, resident.record.manifest, top_k) for row, resident in zip(logits, residents, strict=True)
            ],
        )
        return list(zip(predictions, tokens, strict=True))

    async def _run(self, tiny: bool, work: Callable[[], T]) -> T:
        if tiny:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)


def tokenize(tokenizer: Tokenizer, texts: Sequence[Text], max_lengths: Sequence[int]) -> list[Tokens]:
    """Tokenizes each distinct text once, at the longest length it is wanted at; again only where that is too long.

    Equal texts come back as the same object wherever it fits: that is how the engine sees what it can share.

    Args:
        tokenizer: the base's.
        texts: texts or pairs.
        max_lengths: limit in tokens for each of them.
    """
    longest: dict[Text, int] = {}
    for text, max_length in zip(texts, max_lengths, strict=True):
        longest[text] = max(max_length, longest.get(text, 0))
    full = _encode(tokenizer, set(longest.items()))
    wanted = [
        (text, longest[text] if len(full[text, longest[text]]) <= max_length else max_length)
        for text, max_length in zip(texts, max_lengths, strict=True)
    ]
    cut = _encode(tokenizer, set(wanted) - full.keys())
    known = full | cut
    return [known[key] for key in wanted]


def _encode(tokenizer: Tokenizer, wanted: set[tuple[Text, int]]) -> dict[tuple[Text, int], Tokens]:
    by_length: defaultdict[int, list[Text]] = defaultdict(list)
    for text, max_length in wanted:
        by_length[max_length].append(text)
    return {
        (text, max_length): tokens
        for max_length, texts in by_length.items()
        for text, tokens in zip(texts, tokenizer.encode(texts, max_length), strict=True)
    }


def _characters(text: Text) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
