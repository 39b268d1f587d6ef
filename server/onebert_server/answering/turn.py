"""Questions of one turn of the event loop: tokenized together, submitted as one block, its answers read together."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, islice, repeat
from math import inf
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np

from onebert_encoder.text.tokenizer import CutOnce
from onebert_encoder.text.tokens import SEGMENT_BITS
from onebert_server.access.context import Context
from onebert_server.access.principal import Principal
from onebert_server.answering.gateway import Gateway
from onebert_server.answering.plan import BlankText, Questions
from onebert_server.answering.reading.logits import TINY_NUMBERS, Results, joined, read_together
from onebert_server.answering.resolution import Resolved
from onebert_server.answering.sizes import AnswerSize, Counted
from onebert_server.answering.tokenizing import Splitter
from onebert_server.engine.block import REQUEST, SEQUENCE, Block, Ended
from onebert_server.fairness.round_robin import RoundRobin
from onebert_server.fairness.shares import Permits
from onebert_server.observed import ANSWER, FORWARD, QUEUE, TOKENIZE, Observed
from onebert_store.errors import EngineFailed, QueueFull

# The work of a turn in characters, some four milliseconds; what is more waits for later turns. A text costs as much as
# `TEXT_IN_CHARACTERS` beside its own.
TURN_CHARACTERS, TEXT_IN_CHARACTERS = 10_240, 16
# The work that may wait for later turns: each principal may hold as much as it leaves free.
MAX_WAITING = 2**22

_SLOT, _GENERATION = map(itemgetter, map(Resolved._fields.index, ("slot", "generation")))


class Part(NamedTuple):
    """Facts that questions have from their request.

    Attributes:
        texts: how many it has.
        size: of all its answers.
        blanks: whether blank texts are left out. With False they are refused, with None if no base finds a token.
    """

    texts: int
    size: AnswerSize
    blanks: bool | None


class Asking:
    """Questions that are answered together, on their way through a turn to the engine and back.

    Attributes:
        questions: by version.
        cost: the work of its turn, in characters; all that a turn does if it is more.
        came, began, submitted: times when they came, when their versions were there, and when they were tokenized.
        first, last: times when their first batch began, and when the last one ended; `batches` are the spans of all.
        answered: ends when all answers are there.
        numbers: of the engine's requests that are under way.
        waits: whether it waits for a later turn.
        sizes: of the answers that it has counted.
    """

    __slots__ = (
        *("answered", "batches", "began", "came", "context", "cost", "first", "last", "numbers", "part", "questions"),
        *("requests", "results", "sizes", "submitted", "waits"),
    )

    def __init__(self, context: Context, questions: Sequence[Questions], part: Part, came: float) -> None:
        self.context, self.questions, self.part, self.came = context, questions, part, came
        self.answered: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.began = self.submitted = time.monotonic()
        self.first, self.last = inf, 0.0
        self.numbers: list[int] = []
        self.batches: list[Any] = []
        self.sizes: list[Counted] = []
        self.requests = self.cost = 0
        self.waits = False
        self.results = Results()
        for group in questions:
            self.cost += group.characters + TEXT_IN_CHARACTERS * len(group.texts)
        self.cost = min(self.cost, TURN_CHARACTERS)

    def fail(self, error: Exception) -> None:
        if not self.answered.done():
            self.answered.set_exception(error)

    def measure(self, group: Questions, splitters: Mapping[str, Splitter], tokenized: Mapping[Any, Any]) -> None:
        """Counts what will be answered, before it is cut to sequences; see `Questions.measure`.

        Raises:
            BlankText: a text without a token is not to be left out.
            TooLarge: the answers are too large together.
        """
        group.measure(splitters[group.facts.base].tokenizer, tokenized)
        for number, (text, _) in group.blank.items():
            bases = splitters.values() if self.part.blanks is None else ()
            split = [base.tokenizer.split([text], 1, placed=False) for base in bases]
            if not self.part.blanks and not any(any(pieces.lengths) for [pieces] in split):
                raise BlankText(number if self.part.texts > 1 else 0, self.part.texts)
        if group.counted is not None:
            self.part.size.add(group.counted)
            self.sizes.append(group.counted)


class Turn:
    """Takes what is asked in one turn of an event loop to the engine, and its answers back."""

    def __init__(self, gateway: Gateway, splitters: Mapping[str, Splitter]) -> None:
        self._gateway, self._splitters = gateway, splitters
        gateway.answered = self._answered
        self._numbers = itertools.count()
        self._asked: list[Asking] = []
        self._cost = 0
        self._later: RoundRobin[Asking] = RoundRobin()
        self._any_later = False
        self._permits = Permits(MAX_WAITING, "as many texts wait to be tokenized as a process holds; try again soon")
        self._ends_on: asyncio.AbstractEventLoop | None = None
        # By the numbers of the engine's requests, each of one host.
        self._under_way: dict[int, tuple[Asking, Sequence[Questions]]] = {}

    def ask(self, asking: Asking) -> asyncio.Future[None]:
        """Asks at the end of this turn; for errors see `Gateway.submit`, and BlankText, TooLarge and QueueFull."""
        self._asked.append(asking)
        self._cost += asking.cost
        loop = asking.answered.get_loop()
        if self._ends_on is not loop:
            self._ends_on = loop
            loop.call_soon(self._end)
        return asking.answered

    def withdraw(self, asking: Asking) -> None:
        """Withdraws what nobody waits for, or what is asked again as something else."""
        asking.answered.cancel()
        self._release(asking)
        self._take_back(asking)

    def count(self, context: Context, part: Part) -> None:
        """Has the quotas count a request that is refused for what it holds."""
        if context.requests and context.principal.quotas.of_rates:
            refused = Asking(context, (), part, time.monotonic())
            refused.answered.cancel()
            self._submit([refused])

    def _end(self) -> None:
        self._ends_on = None
        askings, cost = self._asked, self._cost
        self._asked, self._cost = [], 0
        if self._any_later or cost > TURN_CHARACTERS:
            askings = self._first_of(askings)
        try:
            try:
                self._ask(askings)
            except Exception as error:
                self._alone(self._ask, askings, error)
        except BaseException:
            # Nobody waits in vain, also where a tokenizer panics, which is no Exception.
            for asking in askings:
                self._take_back(asking)
                asking.fail(EngineFailed("the server failed to ask; its log says where"))
            raise

    def _first_of(self, askings: Iterable[Asking]) -> list[Asking]:
        """Returns the work of one turn, which principals share in turns; the rest waits for later ones."""
        for asking in askings:
            principal = asking.context.principal.name
            try:
                self._permits.take(principal, asking.cost)
            except QueueFull as error:
                asking.fail(error)
            else:
                asking.waits = True
                self._later.put(asking, principal)
        first, cost = list[Asking](), 0
        while cost < TURN_CHARACTERS and (next_one := self._later.take(_is_waited_for)) is not None:
            first.append(next_one)
            cost += next_one.cost
            self._release(next_one)
        self._any_later = bool(self._later)
        if self._any_later:
            self._ends_on = asyncio.get_running_loop()
            self._ends_on.call_soon(self._end)
        return first

    def _release(self, asking: Asking) -> None:
        if asking.waits:
            asking.waits = False
            self._permits.give_back(asking.context.principal.name, asking.cost)

    def _alone(self, work: Callable[[Sequence[Asking]], None], askings: Sequence[Asking], error: Exception) -> None:
        """Does work that has failed for all together for each alone: nobody fails for what another one asks."""
        for asking in askings:
            self._take_back(asking)
            try:
                if len(askings) == 1:
                    raise error
                work([asking])
            except Exception as failure:
                self._take_back(asking)
                asking.fail(failure)

    def _ask(self, askings: Sequence[Asking]) -> None:
        texts, laid = dict[str, dict[Any, None]](), list[Asking]()
        for asking in askings:
            for questions in asking.questions:
                if questions.tokenized is None:
                    texts.setdefault(questions.facts.base, {}).update(dict.fromkeys(questions.texts))
        ids_of: dict[str, Mapping[Any, list[int]]] = {}
        for base, distinct in texts.items():
            ids_of[base] = dict(zip(distinct, self._splitters[base].tokenizer.ids([*distinct]), strict=True))
        for asking in askings:
            # Done: it was withdrawn.
            if not asking.answered.done():
                try:
                    self._lay(asking, ids_of)
                except Exception as error:
                    asking.fail(error)
                else:
                    laid.append(asking)
        if laid:
            self._submit(laid)

    def _lay(self, asking: Asking, ids_of: Mapping[str, Mapping[Any, list[int]]]) -> None:
        for group in asking.questions:
            if group.tokenized is None:
                asking.measure(group, self._splitters, ids_of[group.facts.base])
        once = CutOnce()
        for group in asking.questions:
            if not group.items:
                group.cut(self._splitters[group.facts.base].tokenizer, once)

    def _take_back(self, asking: Asking) -> None:
        """Withdraws what is under way and what is counted of questions, which may be submitted again."""
        while asking.sizes:
            asking.part.size.take_back(asking.sizes.pop())
        numbers = [number for number in asking.numbers if self._under_way.pop(number, None)]
        asking.numbers = []
        if numbers:
            self._gateway.withdraw(numbers)

    def _submit(self, askings: Sequence[Asking]) -> None:
        """Submits the sequences of these questions, in one request of the engine for each of their hosts."""
        now, tokens = time.monotonic(), 0
        requests, spans, rows = [], [], list[tuple[int, int, int, int, int]]()
        ids, types = list[list[int]](), list[tuple[int, Sequence[list[int]]]]()
        callers, texts_of = dict[int, tuple[int, Principal]](), dict[tuple[int, int], dict[Any, int]]()
        for asking in askings:
            asking.submitted, context = now, asking.context
            caller = callers.setdefault(id(context.principal), (len(callers), context.principal))[0]
            if context.requests:
                asking.requests = context.requests.pop()
            count, of_host = asking.requests, dict[int, list[Questions]]()
            for group in asking.questions:
                if group.items:
                    of_host.setdefault(group.resolved.host, []).append(group)
            # Without a question it ends at once, and is counted.
            for host, questions in (of_host or {0: []}).items():
                number, first = next(self._numbers), len(rows)
                # Questions of one request may be requests of their own.
                texts = texts_of.setdefault((id(asking.part), host), {})
                for group in questions:
                    versions, lengths, keys = group.versions, group.lengths, group.keys
                    if len(versions) < len(keys):
                        # Windows are of one version.
                        versions = [versions[0]] * len(keys)
                    numbers = map(texts.setdefault, keys, range(len(rows), len(rows) + len(keys)))
                    seconds = group.seconds or repeat(0)
                    slots, generations = map(_SLOT, versions), map(_GENERATION, versions)
                    rows += zip(slots, lengths, seconds, numbers, generations)  # noqa: B905 - `repeat` has no end
                    ids += group.ids
                    if group.in_segments:
                        types.append((tokens, group.types))
                    tokens += sum(lengths)
                self._under_way[number] = asking, questions
                asking.numbers.append(number)
                spans.append(context.observed.span)
                requests.append((number, host, caller, len(rows) - first, count, context.deadline, now, False))
                count = 0
        flat = np.fromiter(chain.from_iterable(ids), np.int32, tokens)
        for start, of_tokens in types:
            segments = np.fromiter(chain.from_iterable(of_tokens), np.int32)
            flat[start : start + len(segments)] |= segments << SEGMENT_BITS
        principals = [*map(itemgetter(1), callers.values())]
        block = np.array(requests, REQUEST), np.array(rows, SEQUENCE), flat, spans if any(spans) else ()
        self._gateway.submit(Block(principals, *block))

    def _answered(self, ended: Ended) -> None:
        """Takes the answers of a batch to those who wait for them, and reads them together."""
        stops, start, done, read = [0, *np.cumsum(ended.outputs).tolist()], 0, list[Asking](), list[Asking]()
        for number, error, count, began, end in ended.requests.tolist():
            first, start = start, start + count
            if (under_way := self._under_way.pop(number, None)) is None:
                continue
            asking, questions = under_way
            if error >= 0:
                asking.fail(ended.errors[error])
                continue
            try:
                asking.results.add(questions, ended, first, stops)
            except Exception as failure:
                asking.fail(failure)
            asking.first, asking.last = min(asking.first, began), max(asking.last, end)
            asking.batches += ended.batches.get(number, ())
            asking.numbers.remove(number)
            if not (asking.numbers or asking.answered.done()):
                done.append(asking)
                if 0 < asking.results.cost <= TINY_NUMBERS:
                    read.append(asking)
        try:
            self._read(read)
        except Exception as failure:
            self._alone(self._read, read, failure)
        for asking in done:
            if not asking.answered.done():
                asking.answered.set_result(None)

    def _read(self, askings: Sequence[Asking]) -> None:
        if not askings:
            return
        results = askings[0].results if len(askings) == 1 else joined([asking.results for asking in askings])
        readings = read_together(*results.whole(), self._splitters)
        if len(askings) == 1:
            results.readings = readings
            return
        rest = iter(readings)
        for asking in askings:
            asking.results.readings = [*islice(rest, len(asking.results.items))]


def _is_waited_for(asking: Asking) -> bool:
    return not asking.answered.done()


def note_phases(observed: Observed, askings: Iterable[Asking], answered: float) -> None:
    """Notes the phases of computed questions, as if they were one request, and since `answered` of their answer."""
    came = began = submitted = first = inf
    last, batches = 0.0, dict[int, Any]()
    for asking in askings:
        if asking.last:
            came, began, submitted = min(came, asking.came), min(began, asking.began), min(submitted, asking.submitted)
            first, last = min(first, asking.first), max(last, asking.last)
            # By their spans' ids: OpenTelemetry's contexts have no hash.
            for batch in asking.batches:
                batches[batch.span_id] = batch
    phases = [(ANSWER, answered, time.monotonic())]
    if last:
        # The time until the versions were loaded is waiting, too.
        waited = submitted - (began - came)
        phases[:0] = (TOKENIZE, began, submitted), (QUEUE, waited, first), (FORWARD, first, last)
    observed.phases(phases, [*batches.values()])
