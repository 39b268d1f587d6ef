"""Shows computed questions: reads the answers, notes them, and has the caller's format write each one."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, TypeVar

from onebert_encoder.explaining.words import Explanation
from onebert_server.access.context import Context
from onebert_server.answering.gateway import Computed, Gateway, Item, Wanted
from onebert_server.answering.plan import BlankText, Questions
from onebert_server.answering.reading.logits import TINY_NUMBERS, Reading, Results, joined, read_together
from onebert_server.answering.reading.seen import items_of, note
from onebert_server.answering.resolution import Resolved
from onebert_server.answering.tokenizing import Splitter
from onebert_server.answering.turn import Asking, note_phases
from onebert_server.fairness.places import PartByPart
from onebert_server.versions.facts import Facts, Shadowing
from onebert_store.errors import AnswerNotFinite, OneBertError

T = TypeVar("T")
_ALL, _FACTS = slice(0, None), attrgetter("facts")


class Answered(NamedTuple):
    """One version's answer to one input, or the reason for none; with its explanation if the request wants one."""

    facts: Facts
    reading: Reading | AnswerNotFinite
    explanation: Explanation | None = None

    def read(self) -> Reading:
        """Returns the reading; raises AnswerNotFinite if the answer is not a finite number."""
        if isinstance(self.reading, Reading):
            return self.reading
        raise self.reading


class Unanswered(NamedTuple):
    """A question without an answer, in a request that accepts partial answers."""

    ref: str
    error: OneBertError


class Showing:
    """Shows answers here, or in the worker threads of `parts` if that is much."""

    def __init__(self, splitters: Mapping[str, Splitter], gateway: Gateway, parts: PartByPart) -> None:
        self._splitters, self._gateway, self._parts = splitters, gateway, parts
        self._comparing: set[asyncio.Task[None]] = set()

    async def show(
        self,
        context: Context,
        wanted: Wanted,
        askings: Sequence[Asking],
        missed: Mapping[int, Unanswered],
        show: Callable[[int, Any], T],
        first: int,
    ) -> list[T]:
        """Shows all answers, and reads each one just before; `first` is the number of the first one."""
        began = time.monotonic()
        results = askings[0].results if len(askings) == 1 else joined([asking.results for asking in askings])
        every = wanted.refs is None
        places: Sequence[int] = results.places
        if every:
            # Blank texts have no places among the answers.
            ranks = dict(zip(sorted(places), range(len(places)), strict=True))
            places = [*map(ranks.__getitem__, places)]

        def shown(part: slice) -> list[T]:
            items, own, readings = results.items[part], places[part], results.readings
            read = read_together(*results.part(part), self._splitters) if readings is None else readings[part]
            note(context, first, own, items, results.versions[part], read)
            return [*map(show, own, map(Answered, map(_FACTS, items), read))]

        try:
            if results.cost <= TINY_NUMBERS:
                results_shown = shown(_ALL)
            else:
                results_shown = await self._parts.run(context.principal.name, results.costs(), shown)
        finally:
            questions = (
                askings[0].questions if len(askings) == 1 else [each for one in askings for each in one.questions]
            )
            for group in questions:
                if group.resolved.shadows:
                    # Begins once the caller's answer is written as far as it does not wait.
                    comparing = asyncio.ensure_future(
                        self._compare(context.principal.name, group, group.resolved.shadows)
                    )
                    self._comparing.add(comparing)
                    comparing.add_done_callback(self._comparing.discard)
        note_phases(context.observed, askings, began)
        if len(questions) == 1 and not missed and (every or not questions[0].blank):
            return results_shown
        if not every:
            missed = {
                **missed,
                **{number: _blank(version) for each in questions for number, (_, version) in each.blank.items()},
            }
        by_number = dict(zip(places, results_shown, strict=True))
        by_number |= {number: show(number, unanswered) for number, unanswered in missed.items()}
        return [by_number[number] for number in sorted(by_number)]

    async def here_or_beside(self, principal: str, numbers: Sequence[int], work: Callable[[slice], list[T]]) -> list[T]:
        """Returns the results of all pieces, made here, or in worker threads if their costs, in logits, are large."""
        if sum(numbers) <= TINY_NUMBERS:
            return work(slice(0, None))
        return await self._parts.run(principal, numbers, work)

    async def _compare(self, principal: str, questions: Questions, shadows: Shadowing) -> None:
        """Tells the shadows of a version's questions how it has answered, by its own rules."""
        if questions.computed is None:
            return
        asked, results = questions.asked.of_shadows, Results()
        results.items = [item._replace(asked=asked) for item in questions.items]
        results.logits, results.sizes = [questions.computed[0]], [questions.computed[1]]

        def answers(part: slice) -> list[tuple[Item, ...] | None]:
            readings = read_together(*results.part(part), self._splitters)
            return [
                items_of(questions.facts, reading.answer) if isinstance(reading, Reading) else None
                for reading in readings
            ]

        answered = await self.here_or_beside(principal, results.costs(), answers)
        self._gateway.computed(Computed(shadows, [item.text for item in results.items], answered, asked))


def _blank(version: Resolved) -> Unanswered:
    return Unanswered(version.facts.ref, BlankText(0, 1))
