"""Questions of one turn of the event loop: tokenized together, submitted as one block, its answers read together."""

import asyncio
import itertools
import time
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain, islice, repeat
from math import inf
from typing import Any, NamedTuple

import numpy as np

from onebert_encoder.answering.scores import Array
from onebert_encoder.text.tokenizer import CutOnce
from onebert_encoder.text.tokens import SEGMENT_BITS, Text
from onebert_server.access.context import Context
from onebert_server.access.principal import Principal
from onebert_server.answering.gateway import Gateway
from onebert_server.answering.plan import BlankText, Questions
from onebert_server.answering.reading.logits import read_together
from onebert_server.answering.reading.results import TINY_NUMBERS, Results, joined
from onebert_server.answering.reading.sizes import AnswerSize
from onebert_server.answering.tokenizing import Splitter
from onebert_server.engine.block import REQUEST, SEQUENCE, Block, Ended
from onebert_server.observed import FORWARD, QUEUE, TOKENIZE, Observed
from onebert_store.errors import EngineFailed

# Characters that a turn tokenizes, in some four milliseconds; what came after them waits for the next turn.
TURN_CHARACTERS = 2**13


class Part(NamedTuple):
    """Facts that questions have from their request.

    Attributes:
        texts: how many it has.
        size: of all its answers.
        blanks: whether blank texts are left out. With False they are refused, with None if no base finds a token.
        requests: one entry until the quota of requests has counted it.
    """

    texts: int
    size: AnswerSize
    blanks: bool | None
    requests: list[int]


class Asking:
    """Questions that are answered together, on their way through a turn to the engine and back.

    Attributes:
        questions: by version.
        came, began, submitted: times when they came, when their versions were there, and when they were tokenized.
        first, last: times when their first batch began, and when the last one ended; `batches` are the spans of all.
        answered: ends when all answers are there.
        numbers: of the engine's requests that are under way.
    """

    __slots__ = (
        *("answered", "batches", "began", "came", "context", "first", "last", "numbers", "part", "questions"),
        *("requests", "results", "submitted"),
    )

    def __init__(self, context: Context, questions: Sequence[Questions], part: Part, came: float) -> None:
        self.context, self.questions, self.part, self.came = context, questions, part, came
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.began = self.submitted = time.monotonic()
        self.first, self.last = inf, 0.0
        self.numbers: list[int] = []
        self.batches: list[Any] = []
        self.requests = 0
        self.results = Results()

    @property
    def characters(self) -> int:
        """Characters of the texts that its turn tokenizes."""
        return sum([sum(map(len, questions.texts)) for questions in self.questions if questions.pieces is None])

    def fail(self, error: Exception) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)


class Turn:
    """Takes what is asked in one turn of an event loop to the engine, and its answers back."""

    def __init__(self, gateway: Gateway, splitters: Mapping[str, Splitter]) -> None:
        self._gateway, self._splitters = gateway, splitters
        gateway.answered = self._answered
        self._numbers = itertools.count()
        self._asked: deque[Asking] = deque()
        self._ends_on: asyncio.AbstractEventLoop | None = None
        # By the numbers of the engine's requests, each of one host.
        self._under_way: dict[int, tuple[Asking, Sequence[Questions]]] = {}

    def ask(self, asking: Asking) -> asyncio.Future[None]:
        """Asks at the end of this turn; for errors see `Gateway.submit`, and BlankText and TooLarge."""
        self._asked.append(asking)
        loop = asking.answered.get_loop()
        if self._ends_on is not loop:
            self._ends_on = loop
            loop.call_soon(self._end)
        return asking.answered

    def withdraw(self, asking: Asking) -> None:
        """Withdraws what nobody waits for."""
        asking.answered.cancel()
        self._take_back(asking)

    def _end(self) -> None:
        self._ends_on = None
        askings, characters = [], 0
        while self._asked and characters < TURN_CHARACTERS:
            asking = self._asked.popleft()
            # Done: it was withdrawn.
            if not asking.answered.done():
                askings.append(asking)
                characters += asking.characters
        if self._asked:
            self._ends_on = asyncio.get_running_loop()
            self._ends_on.call_soon(self._end)
        try:
            self._tokenize(askings)
        except BaseException:
            # Nobody waits in vain, also where a tokenizer panics, which is no Exception.
            for asking in askings:
                self._take_back(asking)
                asking.fail(EngineFailed("the server failed to ask; its log says where"))
            raise

    def _tokenize(self, askings: Sequence[Asking]) -> None:
        texts: dict[str, dict[Any, None]] = {}
        for asking in askings:
            for questions in asking.questions:
                if questions.pieces is None:
                    texts.setdefault(questions.facts.base, {}).update(dict.fromkeys(questions.texts))
        ids_of: dict[str, Mapping[Any, list[int]]] = {}
        try:
            for base, distinct in texts.items():
                ids_of[base] = dict(zip(distinct, self._splitters[base].tokenizer.ids([*distinct]), strict=True))
        except Exception as error:
            # A text that the library does not take fails no other request.
            if len(askings) == 1:
                askings[0].fail(error)
            for asking in askings if len(askings) > 1 else ():
                self._tokenize([asking])
        else:
            self._submit([asking for asking in askings if self._lay(asking, ids_of)])

    def _lay(self, asking: Asking, ids_of: Mapping[str, Mapping[Any, list[int]]]) -> bool:
        """Cuts the texts to sequences; returns whether that could be done."""
        cuts = CutOnce()
        try:
            for questions in asking.questions:
                base = questions.facts.base
                questions.lay(self._splitters[base].tokenizer, ids_of.get(base, {}), cuts)
                for number, text in questions.blank.items():
                    self._check_blank(asking.part, number, text)
                if questions.items:
                    asking.part.size.add(questions.facts, [*map(len, questions.ids)], len(questions.items))
        except Exception as error:
            asking.fail(error)
            return False
        return True

    def _check_blank(self, part: Part, number: int, text: Text) -> None:
        """Raises BlankText if a text without a token is not to be left out."""
        bases = self._splitters.values() if part.blanks is None else ()
        split = [base.tokenizer.split([text], 1, placed=False) for base in bases]
        if not part.blanks and not any(any(pieces.lengths) for [pieces] in split):
            raise BlankText(number if part.texts > 1 else 0, part.texts)

    def _submit(self, askings: Sequence[Asking]) -> None:
        try:
            self._send(askings)
        except Exception as error:
            # A request that cannot be submitted fails no other one.
            for asking in askings:
                self._take_back(asking)
                if len(askings) == 1:
                    asking.fail(error)
                else:
                    self._submit([asking])

    def _take_back(self, asking: Asking) -> None:
        """Withdraws what is under way of questions, which may be submitted again."""
        numbers = [number for number in asking.numbers if self._under_way.pop(number, None)]
        asking.numbers = []
        if numbers:
            self._gateway.withdraw(numbers)

    def _send(self, askings: Sequence[Asking]) -> None:
        """Submits the sequences of these questions, in one request of the engine for each of their hosts."""
        rows, sequences, now = [], _Sequences(), time.monotonic()
        principals, spans = dict[int, tuple[int, Principal]](), []
        for asking in askings:
            asking.submitted, context = now, asking.context
            place, _ = principals.setdefault(id(context.principal), (len(principals), context.principal))
            if asking.part.requests:
                asking.requests = asking.part.requests.pop()
            requests = asking.requests
            of_host: dict[int, list[Questions]] = {}
            for of_version in asking.questions:
                if of_version.items:
                    of_host.setdefault(of_version.resolved.host, []).append(of_version)
            # Without a question it ends at once, and is counted.
            for host, questions in (of_host or {0: []}).items():
                number = next(self._numbers)
                self._under_way[number] = asking, questions
                asking.numbers.append(number)
                spans.append(context.observed.span)
                count = sequences.add(questions)
                rows.append((number, host, place, count, requests, context.deadline, now, False))
                requests = 0
        if rows:
            callers = [principal for _, principal in principals.values()]
            traced = spans if any(spans) else ()
            self._gateway.submit(Block(callers, np.array(rows, REQUEST), *sequences.arrays(), traced))

    def _answered(self, ended: Ended) -> None:
        """Takes the answers of a batch to those who wait for them, and reads them together."""
        stops, start, done = [0, *np.cumsum(ended.outputs).tolist()], 0, list[Asking]()
        for number, error, count, began, end in ended.requests.tolist():
            first, start = start, start + count
            if (under_way := self._under_way.pop(number, None)) is None:
                continue
            asking, questions = under_way
            if error >= 0:
                asking.fail(ended.errors[error])
                continue
            try:
                for of_version in questions:
                    stop = first + len(of_version.ids)
                    logits = ended.logits[stops[first] : stops[stop]]
                    asking.results.add(of_version, ended.outputs[first:stop], logits)
                    first = stop
            except Exception as failure:
                asking.fail(failure)
            asking.first, asking.last = min(asking.first, began), max(asking.last, end)
            asking.batches += ended.batches.get(number, ())
            asking.numbers.remove(number)
            if not questions:
                asking.results.readings = []
            if not (asking.numbers or asking.answered.done()):
                done.append(asking)
        self._read([asking for asking in done if asking.results.items and asking.results.cost <= TINY_NUMBERS])
        for asking in done:
            if not asking.answered.done():
                asking.answered.set_result(None)

    def _read(self, askings: Sequence[Asking]) -> None:
        try:
            results = joined([asking.results for asking in askings])
            readings = iter(read_together(*results.whole, self._splitters) if askings else ())
        except Exception as error:
            # An answer that cannot be read fails no other request.
            if len(askings) == 1:
                askings[0].fail(error)
            for asking in askings if len(askings) > 1 else ():
                self._read([asking])
        else:
            for asking in askings:
                asking.results.readings = [*islice(readings, len(asking.results.items))]


class _Sequences:
    """The sequences of a block, one after another."""

    def __init__(self) -> None:
        self._rows: list[tuple[int, int, int, int, int]] = []
        self._ids: list[list[int]] = []
        self._types: list[tuple[int, Sequence[list[int]]]] = []
        self._tokens = 0

    def add(self, questions: Sequence[Questions]) -> int:
        """Adds the sequences of one request of the engine; returns their number."""
        before, texts = len(self._ids), dict[Any, int]()
        for of_version in questions:
            version, tokens = of_version.resolved, [*map(len, of_version.ids)]
            keys = [texts.setdefault(key, len(texts)) for key in of_version.keys]
            seconds, generations = of_version.seconds or repeat(0), repeat(version.generation)
            self._rows += zip(repeat(version.slot), tokens, seconds, keys, generations)
            self._ids += of_version.ids
            if of_version.types is not None:
                self._types.append((self._tokens, of_version.types))
            self._tokens += sum(tokens)
        return len(self._ids) - before

    def arrays(self) -> tuple[Array, Array]:
        """SEQUENCE, and the token ids with their segments."""
        ids = np.fromiter(chain.from_iterable(self._ids), np.int32, self._tokens)
        for start, types in self._types:
            segments = np.fromiter(chain.from_iterable(types), np.int32)
            ids[start : start + len(segments)] |= segments << SEGMENT_BITS
        return np.array(self._rows, SEQUENCE), ids


def note_phases(observed: Observed, askings: Iterable[Asking]) -> None:
    """Notes the phases of computed questions, as if they were one request."""
    came = began = submitted = first = inf
    last, batches = 0.0, dict[int, Any]()
    for asking in askings:
        if asking.last:
            came, began, submitted = min(came, asking.came), min(began, asking.began), min(submitted, asking.submitted)
            first, last = min(first, asking.first), max(last, asking.last)
            # By their spans' ids: OpenTelemetry's contexts have no hash.
            batches |= {batch.span_id: batch for batch in asking.batches}
    if last:
        observed.phase(TOKENIZE, began, submitted)
        # With the time until the versions were loaded.
        observed.phase(QUEUE, submitted - (began - came), first)
        observed.phase(FORWARD, first, last, [*batches.values()])
