"""Questions of one turn of the event loop: tokenized together, submitted as one block, its answers read together."""

import asyncio
import itertools
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import chain, repeat
from operator import itemgetter
from typing import Any

import numpy as np

from onebert_encoder.text.tokenizer import CutOnce
from onebert_encoder.text.tokens import SEGMENT_BITS
from onebert_server.access.principal import Principal
from onebert_server.answering.asking import TURN_CHARACTERS, Asking
from onebert_server.answering.gateway import Gateway, Resolved
from onebert_server.answering.plan import Questions
from onebert_server.answering.reading import TINY_NUMBERS, read_together, unread
from onebert_server.answering.tokenizing import Splitter
from onebert_server.engine.block import REQUEST, SEQUENCE, Block, Ended
from onebert_server.fairness.places import RoundRobin
from onebert_server.fairness.shares import Permits
from onebert_store.errors import EngineFailed, QueueFull

# The work that may wait for later turns: each principal may hold as much as it leaves free.
MAX_WAITING = 2**22

_SLOT, _GENERATION = map(itemgetter, map(Resolved._fields.index, ("slot", "generation")))


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
        if asking.requests:
            asking.context.requests.append(asking.requests)
            asking.requests = 0

    def count(self, asking: Asking) -> None:
        """Has the quotas count a request that is refused for what it holds."""
        if asking.context.requests and asking.context.principal.quotas.of_rates:
            refused = Asking(asking.context, asking.wanted, (), None)
            refused.begin((), {})
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
        """Returns the work of one turn, which principals share round robin; the rest waits for later ones."""
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
            for group in asking.groups:
                if group.tokenized is None:
                    texts.setdefault(group.facts.base, {}).update(dict.fromkeys(group.texts))
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
        for group in asking.groups:
            if group.tokenized is None:
                asking.measure(group, self._splitters, ids_of[group.facts.base])
        once = CutOnce()
        for group in asking.groups:
            if not group.items:
                group.cut(self._splitters[group.facts.base].tokenizer, once)

    def _take_back(self, asking: Asking) -> None:
        """Withdraws what is under way of questions, which may be submitted again."""
        numbers = [number for number in asking.numbers if self._under_way.pop(number, None)]
        asking.numbers = []
        if numbers:
            self._gateway.withdraw(numbers)

    def _submit(self, askings: Sequence[Asking]) -> None:
        """Submits the sequences of these questions, in one request of the engine for each of their hosts."""
        now, tokens = time.monotonic(), 0
        requests, spans, rows = [], [], list[tuple[int, int, int, int, int]]()
        ids, types = list[list[int]](), list[tuple[int, Sequence[list[int]]]]()
        callers = dict[int, tuple[int, Principal]]()
        for asking in askings:
            asking.submitted, context = now, asking.context
            caller = callers.setdefault(id(context.principal), (len(callers), context.principal))[0]
            if context.requests:
                asking.requests = context.requests.pop()
            count, of_host = asking.requests, dict[int, list[Questions]]()
            for group in asking.groups:
                if group.items:
                    of_host.setdefault(group.resolved.host, []).append(group)
            # Without a question it ends at once, and is counted.
            for host, groups in (of_host or {0: []}).items():
                number, first = next(self._numbers), len(rows)
                texts = dict[Any, int]()
                for group in groups:
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
                self._under_way[number] = asking, groups
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
            asking, groups = under_way
            if error >= 0:
                asking.fail(ended.errors[error])
                continue
            try:
                asking.take(groups, ended, first, stops)
            except Exception as failure:
                asking.fail(failure)
            asking.first, asking.last = min(asking.first, began), max(asking.last, end)
            asking.batches += ended.batches.get(number, ())
            asking.numbers.remove(number)
            if not (asking.numbers or asking.answered.done()):
                done.append(asking)
                if 0 < asking.reading_cost <= TINY_NUMBERS:
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
        groups, count = list[Questions](), 0
        for asking in askings:
            groups += asking.groups
        readings = read_together(*unread(groups), self._splitters)
        for asking in askings:
            first = count
            for group in asking.groups:
                count += len(group.items)
            asking.readings = readings[first:count]


def _is_waited_for(asking: Asking) -> bool:
    return not asking.answered.done()
