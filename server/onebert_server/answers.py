"""From texts to answers: find the versions, tokenize off the event loop, have it computed, read the logits."""

import asyncio
import threading
from collections import defaultdict
from collections.abc import Collection, Sequence
from concurrent.futures import Executor
from functools import partial
from typing import NamedTuple

import numpy as np

from onebert_encoder.answer import TASK_TYPES, Answer, answer
from onebert_encoder.tokens import Text, Tokenizer, Tokens
from onebert_server.schemas import MAX_ITEMS, MAX_TEXT
from onebert_server.versions import Found, Logits, Moved, Record, Versions, Wanted
from onebert_store.errors import AnswerNotFinite, InvalidInput, QueueFull, TooLarge

# Threads that tokenize and read answers.
WORKERS = 4

# About what the event loop may do itself: below a third of a millisecond.
TINY_CHARACTERS = 512
TINY_LOGITS = 64

# Numbers that one request may be answered with, 64 MiB: 64 texts of 512 tokens with 512 tags each, or what is less.
MAX_LOGITS = 2**24

# What may be tokenized or wait to be: as much as the largest request holds, 64 pairs of the longest texts.
MAX_CHARACTERS = MAX_ITEMS * 2 * MAX_TEXT


class Answered(NamedTuple):
    """One answer, the version that gave it, and the tokens that it is about."""

    record: Record
    answer: Answer
    tokens: Tokens


class Answerer:
    """Answers for any mix of tasks, in any process; every answer is by the version that was found for it."""

    def __init__(self, tokenizer: Tokenizer, versions: Versions, workers: Executor) -> None:
        self._tokenizer = tokenizer
        self._versions = versions
        self._workers = workers
        self._permits = _Permits()

    async def answer(self, wanted: Wanted, texts: Sequence[Text], top_k: int | None) -> list[Answered]:
        """Answers the i-th text with the i-th version; one text alone with every version.

        Raises:
            InvalidInput: a reference is none, or a text is not what its task takes.
            TaskNotFound, VersionNotFound, AliasNotFound, VersionUnavailable: there is no such version.
            QueueFull, ShuttingDown, TooLarge: nothing was computed.
            EngineFailed: the answers could not be computed.
            AnswerNotFinite: one of them is no number.
        """
        found = await self._versions.find(wanted)
        # Again only if what was remembered has moved since.
        while True:
            try:
                return await self._answer(found, texts, top_k)
            except Moved as moved:
                found = moved.now

    async def _answer(self, found: Found, texts: Sequence[Text], top_k: int | None) -> list[Answered]:
        records = found.records
        texts = list(texts) * len(records) if len(texts) == 1 else texts
        try:
            tokens = await self._prepare(found, texts)
        except BaseException:
            found.release()
            raise
        logits = await found.compute(tokens)
        read = partial(_read, records, texts, tokens, logits, top_k)
        if sum(map(len, logits)) <= TINY_LOGITS:
            answers = read()
        else:
            answers = await asyncio.get_running_loop().run_in_executor(self._workers, read)
        return list(map(Answered, records, answers, tokens))

    async def _prepare(self, found: Found, texts: Sequence[Text]) -> list[Tokens]:
        try:
            _check_takes(found.records, texts)
            tokens = await self._tokenize(found.records, texts)
            _check_size(found.records, tokens)
        except (InvalidInput, TooLarge):
            await found.confirm()
            raise
        return tokens

    async def _tokenize(self, records: Sequence[Record], texts: Sequence[Text]) -> list[Tokens]:
        manifests = [record.manifest for record in records]
        aligned = {text for text, manifest in zip(texts, manifests, strict=True) if manifest.per_token}
        work = partial(tokenize, self._tokenizer, texts, [manifest.max_length for manifest in manifests], aligned)
        characters = sum(map(_characters, set(texts)))
        if characters <= TINY_CHARACTERS:
            return work()
        self._permits.take(characters)
        future = self._workers.submit(work)
        # Not when the request ends: it may be cancelled while a thread still works on its texts.
        future.add_done_callback(lambda _: self._permits.give_back(characters))
        return await asyncio.wrap_future(future)


class _Permits:
    """Counts the characters that are tokenized or wait to be; thread-safe."""

    def __init__(self) -> None:
        self._taken = 0
        self._lock = threading.Lock()

    def take(self, characters: int) -> None:
        with self._lock:
            if self._taken + characters > MAX_CHARACTERS:
                raise QueueFull("as many texts wait to be tokenized as the server holds; try again soon")
            self._taken += characters

    def give_back(self, characters: int) -> None:
        with self._lock:
            self._taken -= characters


def _check_takes(records: Sequence[Record], texts: Sequence[Text]) -> None:
    for record, text in zip(records, texts, strict=True):
        kind = TASK_TYPES[record.manifest.task_type]
        if not kind.takes(text):
            raise InvalidInput(
                f"{record.task}@{record.version} is a {record.manifest.task_type} task and takes {kind.question}"
            )


def _check_size(records: Sequence[Record], tokens: Sequence[Tokens]) -> None:
    """Refuses what a few kilobytes of request could ask of memory: per-token tasks give numbers for every token."""
    numbers = 0
    for record, one in zip(records, tokens, strict=True):
        numbers += len(record.manifest.labels) * (len(one) if record.manifest.per_token else 1)
    if numbers > MAX_LOGITS:
        raise TooLarge("the answers would hold too many numbers, tokens by labels; send the request in parts")


def _read(
    records: Sequence[Record],
    texts: Sequence[Text],
    tokens: Sequence[Tokens],
    logits: Sequence[Logits],
    top_k: int | None,
) -> list[Answer]:
    rows = zip(records, texts, tokens, logits, strict=True)
    return [_read_one(record, text, one, row, top_k) for record, text, one, row in rows]


def _read_one(record: Record, text: Text, tokens: Tokens, logits: Logits, top_k: int | None) -> Answer:
    if not np.isfinite(logits).all():
        raise AnswerNotFinite(f"the answer of {record.task}@{record.version} to this input is not a finite number")
    return answer(logits, record.manifest, text, tokens.alignment, top_k)


def tokenize(
    tokenizer: Tokenizer, texts: Sequence[Text], max_lengths: Sequence[int], aligned: Collection[Text] = ()
) -> list[Tokens]:
    """Tokenizes each distinct text once, at the longest length it is wanted at; again only where that is too long.

    Equal texts come back as the same object wherever it fits: that is how the engine sees what it can share.

    Args:
        tokenizer: the base's.
        texts: texts or pairs.
        max_lengths: limit in tokens for each of them.
        aligned: the texts whose tokens shall say where they lie.
    """
    longest: dict[Text, int] = {}
    for text, max_length in zip(texts, max_lengths, strict=True):
        longest[text] = max(max_length, longest.get(text, 0))
    full = _encode(tokenizer, set(longest.items()), aligned)
    wanted = [
        (text, longest[text] if len(full[text, longest[text]]) <= max_length else max_length)
        for text, max_length in zip(texts, max_lengths, strict=True)
    ]
    cut = _encode(tokenizer, set(wanted) - full.keys(), aligned)
    known = full | cut
    return [known[key] for key in wanted]


def _encode(
    tokenizer: Tokenizer, wanted: set[tuple[Text, int]], aligned: Collection[Text]
) -> dict[tuple[Text, int], Tokens]:
    alike: defaultdict[tuple[int, bool], list[Text]] = defaultdict(list)
    for text, max_length in wanted:
        alike[max_length, text in aligned].append(text)
    return {
        (text, max_length): tokens
        for (max_length, align), texts in alike.items()
        for text, tokens in zip(texts, tokenizer.encode(texts, max_length, align), strict=True)
    }


def _characters(text: Text) -> int:
    return len(text) if isinstance(text, str) else len(text[0]) + len(text[1])
