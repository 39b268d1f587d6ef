"""From texts to answers: resolves references, has the versions compute, and shows what they answer."""

import asyncio
import time
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from itertools import chain, repeat
from typing import Any, NamedTuple, TypeVar

from onebert_encoder.answering.asked import PLAIN, Asked
from onebert_encoder.explaining.words import Explanation
from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.answering.explaining import explain
from onebert_server.answering.gateway import Computed, Gateway, Wanted
from onebert_server.answering.plan import BlankText, Questions
from onebert_server.answering.reading.logits import Reading, read_together
from onebert_server.answering.reading.results import ANSWER_IN_NUMBERS, TINY_NUMBERS, joined
from onebert_server.answering.reading.seen import note, seen
from onebert_server.answering.reading.sizes import AnswerSize
from onebert_server.answering.resolution import Resolutions, Resolved
from onebert_server.answering.tokenizing import AT_ONCE, Splitter, Tokenizing
from onebert_server.answering.turn import Asking, Part, Turn, note_phases
from onebert_server.fairness.places import PartByPart
from onebert_server.observed import ANSWER
from onebert_server.versions.facts import Facts
from onebert_store import errors
from onebert_store.errors import AnswerNotFinite, OneBertError

# Threads that tokenize and read answers.
WORKERS = 4

# Up to `TINY_NUMBERS` logits are read on the event loop; a worker thread reads more, `PART_NUMBERS` at a time.
PART_NUMBERS = 2**15

# Characters of a request that its turn tokenizes, in some two milliseconds; workers tokenize more.
_SHORT_CHARACTERS = 2**12

# Tries to have a version compute that changes whenever it has been resolved.
_TRIES = 4

# `partial` requests: share of the remaining time that is reserved for writing the reply, capped in seconds.
_WRITING, _MAX_WRITING = 0.2, 0.1
# Errors of one question that end the whole request all the same.
_OF_ALL = frozenset({errors.Forbidden.code, errors.OverQuota.code, errors.ShuttingDown.code})

T = TypeVar("T")


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


class Answerer:
    """Answers for any mix of tasks, in any process: each answer names its version."""

    def __init__(self, splitters: Mapping[str, Splitter], gateway: Gateway, workers: Executor) -> None:
        self._gateway, self._splitters = gateway, splitters
        self._resolutions = Resolutions()
        self.tokenizing = Tokenizing(splitters, workers)
        self._turn = Turn(gateway, splitters)
        # The workers that do not tokenize.
        self._reading = PartByPart(workers, WORKERS - AT_ONCE, PART_NUMBERS)

    def check(self, context: Context) -> None:
        """Before the body is read: raises Forbidden, or the errors of `Gateway.check`."""
        context.principal.require_scope(Action.CLASSIFY)
        self._gateway.check(context)

    async def answer(
        self,
        context: Context,
        wanted: Wanted,
        texts: Sequence[Text],
        show: Callable[[int, Any], T],
        blanks: bool = False,
        first: int | None = None,
    ) -> list[T]:
        """Answers the i-th text with the i-th version; a single text with every version.

        Args:
            show: turns an answer and its index into the caller's result. It runs in a worker thread if there is much to
                read, so large results are best encoded there. Answers are read one after the other, in turns with other
                principals, and a cancelled request reads no more.
            blanks: whether `show` gets an Unanswered for a text in which the base of its version finds no token.
            first: the number of the first question in its request, if it has one already; see `Observed.number`.

        Raises:
            BlankText: a text is blank, and `blanks` are not shown.
            OneBertError: see Gateway; QueueFull also if too many texts wait for tokenization.
        """
        blank = None if wanted.refs is None else blanks
        part = Part(len(texts), AnswerSize(wanted.asked), blank, [] if context.counted else [1])
        first = _first(context, wanted, texts) if first is None else first
        asking = await self._ask(context, wanted, texts, range(len(wanted.refs or ())), part)
        return await self._shown(context, wanted, [asking], {}, show, first)

    async def answer_each(
        self,
        context: Context,
        wanted: Wanted,
        texts: Sequence[Text],
        show: Callable[[int, Answered | Unanswered], T],
        first: int | None = None,
    ) -> list[T]:
        """Like `answer`, but a question that fails, or is late slightly before the deadline, gets its own error.

        Forbidden, OverQuota and ShuttingDown end the whole request, and BlankText of a text in which no base finds a
        token.
        """
        part = Part(len(texts), AnswerSize(wanted.asked), None, [] if context.counted else [1])
        first = _first(context, wanted, texts) if first is None else first
        earlier, refs = _earlier(context), wanted.refs or ()
        questions = zip(refs, texts if len(texts) > 1 else repeat(texts[0], len(refs)), strict=True)
        outcomes = await self._one_by_one(
            (
                self._ask(earlier, replace(wanted, refs=[ref]), [text], [number], part)
                for number, (ref, text) in enumerate(questions)
            ),
            earlier.remaining,
        )
        missed = {
            number: Unanswered(refs[number], error)
            for number, error in enumerate(outcomes)
            if isinstance(error, OneBertError)
        }
        askings = [asking for asking in outcomes if isinstance(asking, Asking)]
        return await self._shown(context, wanted, askings, missed, show, first)

    async def answer_explained(
        self, context: Context, wanted: Wanted, texts: Sequence[Text], show: Callable[[int, Answered], T]
    ) -> list[T]:
        """Like `answer`, by one version, with the words that each answer depends on.

        A second request asks the same version again, each time without one of the words.

        Raises:
            InvalidInput: the answers of this task type are not explained.
            TooLarge: the texts, each repeated once per word, are too long together.
        """
        answered: list[Answered] = await self.answer(context, wanted, texts, lambda _, answer: answer)
        read = answered[0].facts, [answer.read() for answer in answered]
        ways = self.answer, self.here_or_beside, self.tokenizing
        explanations = await explain(*ways, context, wanted.asked, texts, *read)

        def shown(part: slice) -> list[T]:
            pairs = zip(answered[part], explanations[part], strict=True)
            explained = [answer._replace(explanation=explanation()) for answer, explanation in pairs]
            return [show(index, answer) for index, answer in enumerate(explained, part.start or 0)]

        costs = [len(answer.facts.labels) + ANSWER_IN_NUMBERS for answer in answered]
        return await self.here_or_beside(context.principal.name, costs, shown)

    async def here_or_beside(self, principal: str, numbers: Sequence[int], work: Callable[[slice], list[T]]) -> list[T]:
        """Returns the results of all pieces, made here, or in worker threads if their costs, in logits, are large."""
        if sum(numbers) <= TINY_NUMBERS:
            return work(slice(0, None))
        return await self._reading.run(principal, numbers, work)

    async def _ask(
        self, context: Context, wanted: Wanted, texts: Sequence[Text], numbers: Sequence[int], part: Part
    ) -> Asking:
        """Has the current versions compute; resolves them again if remembered ones are not current any more."""
        context.principal.require_scope(Action.CLASSIFY)
        for _ in range(_TRIES):
            began = time.monotonic()
            remembered = None if wanted.refs is None else self._resolutions.find(wanted.refs, context)
            resolved = remembered or await self._resolve(context, wanted)
            asking: Asking | None = None
            try:
                numbers = numbers if wanted.refs is not None else range(len(resolved))
                asking = Asking(context, _by_version(resolved, wanted.asked, numbers, texts), part, began)
                if apart := self._not_short(asking.questions, texts):
                    await self._split(context, apart)
                await self._turn.ask(asking)
            except BaseException as error:
                if asking is not None:
                    self._turn.withdraw(asking)
                self._give_back(resolved)
                if asking is not None and asking.requests:
                    part.requests.append(1)
                if not _may_be_outdated(error, remembered is not None):
                    raise
                self._resolutions.forget(wanted.refs or ())
            else:
                return asking
        raise errors.VersionUnavailable("the version changes whenever it is asked", 1)

    async def _resolve(self, context: Context, wanted: Wanted) -> list[Resolved]:
        if wanted.refs is None:
            return await self._gateway.resolve(context, wanted)
        distinct = [*dict.fromkeys(wanted.refs)]
        versions = await self._gateway.resolve(context, replace(wanted, refs=distinct))
        known = dict(zip(distinct, versions, strict=True))
        self._resolutions.remember(known)
        return [known[ref] for ref in wanted.refs]

    def _not_short(self, questions: Sequence[Questions], texts: Sequence[Text]) -> list[Questions]:
        """Returns the questions whose texts are to be split before their turn."""
        if sum(map(len, texts)) > _SHORT_CHARACTERS:
            return [*questions]
        bases = [self._splitters[of_version.facts.base] for of_version in questions]
        pairs = zip(questions, bases, strict=True)
        return [of_version for of_version, base in pairs if not of_version.takes_ids(base.tokenizer)]

    async def _split(self, context: Context, questions: Sequence[Questions]) -> None:
        """Splits the texts of questions into pieces, once for each base."""
        by_base: dict[str, list[Questions]] = {}
        for of_version in questions:
            by_base.setdefault(of_version.facts.base, []).append(of_version)
        for base, of_base in by_base.items():
            texts = [*dict.fromkeys(chain.from_iterable(of_version.texts for of_version in of_base))]
            whole = any(of_version.reads_to_end for of_version in of_base)
            placed = any(of_version.facts.per_token for of_version in of_base)
            split = await self.tokenizing.split(context.principal.name, base, texts, whole, placed)
            pieces = dict(zip(texts, split, strict=True))
            for of_version in of_base:
                of_version.pieces = [pieces[text] for text in of_version.texts]

    async def _shown(
        self,
        context: Context,
        wanted: Wanted,
        askings: Sequence[Asking],
        missed: Mapping[int, Unanswered],
        show: Callable[[int, Any], T],
        first: int,
    ) -> list[T]:
        """Shows all answers, and reads each one just before; `first` is the number of the first one."""
        began, results = time.monotonic(), joined([asking.results for asking in askings])
        every = wanted.refs is None
        places = range(len(results.items)) if every else results.places

        def shown(part: slice) -> list[T]:
            items, readings = results.items[part], results.readings
            read = read_together(*results.part(part), self._splitters) if readings is None else readings[part]
            keepings = [version.keeping for version in results.versions[part]]
            note(context, [first + place for place in places[part]], items, keepings, read)
            answers = zip(places[part], items, read, strict=True)
            return [show(place, Answered(item.facts, reading)) for place, item, reading in answers]

        try:
            if results.cost <= TINY_NUMBERS:
                results_shown = shown(slice(0, None))
            else:
                results_shown = await self._reading.run(context.principal.name, results.costs(), shown)
        finally:
            self._follow(askings)
        note_phases(context.observed, askings)
        context.observed.phase(ANSWER, began, time.monotonic())
        questions = [of_version for asking in askings for of_version in asking.questions]
        for of_version in () if every else questions:
            missed = {**missed, **{number: _blank(of_version) for number in of_version.blank}}
        if len(questions) == 1 and not missed:
            return results_shown
        by_number = dict(zip(places, results_shown, strict=True))
        by_number |= {number: show(number, unanswered) for number, unanswered in missed.items()}
        return [by_number[number] for number in sorted(by_number)]

    def _follow(self, askings: Iterable[Asking]) -> None:
        """Has shadows compute what was answered, once the caller's answer is written as far as it does not wait."""
        for asking in askings:
            for questions in asking.questions:
                if questions.resolved.shadows:
                    asking.answered.get_loop().call_soon(self._compare, questions)

    def _compare(self, questions: Questions) -> None:
        """Tells the shadows of a version's questions how it has answered, by its own rules."""
        asked, labels = questions.asked.of_shadows, list[tuple[str, ...] | None]()
        if questions.computed is not None:
            items = [item._replace(asked=asked) for item in questions.items]
            for reading in read_together(items, *questions.computed, self._splitters):
                answer = reading.answer if isinstance(reading, Reading) else None
                labels.append(None if answer is None else seen(questions.facts, answer).labels)
        texts = [item.text for item in questions.items[: len(labels)]]
        self._gateway.computed(Computed(questions.resolved.shadows, texts, labels, asked))

    def _give_back(self, resolved: Iterable[Resolved]) -> None:
        """Gives shadows back whose questions were not computed."""
        for shadows in {version.shadows for version in resolved} - {0}:
            self._gateway.computed(Computed(shadows, (), (), PLAIN))

    async def _one_by_one(
        self, asking: Iterable[Coroutine[Any, Any, Asking]], seconds: float | None
    ) -> list[Asking | OneBertError]:
        """Returns what each comes to, within so many seconds."""
        tasks = [asyncio.ensure_future(_outcome(question)) for question in asking]
        try:
            done, late = await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_EXCEPTION)
            for task in done:
                task.result()
        except BaseException:
            for task in tasks:
                task.add_done_callback(self._drop)
            raise
        finally:
            for task in tasks:
                task.cancel()
        too_late = errors.DeadlineExceeded("the answer was not there when the request's time was over")
        return [too_late if task in late else task.result() for task in tasks]

    def _drop(self, task: "asyncio.Task[Asking | OneBertError]") -> None:
        """Gives back the shadows of questions that were computed and are not shown."""
        if not task.cancelled() and task.exception() is None and isinstance(asking := task.result(), Asking):
            self._give_back(questions.resolved for questions in asking.questions)


async def _outcome(asking: Coroutine[Any, Any, Asking]) -> Asking | OneBertError:
    """Returns the error of one question, unless it ends the whole request."""
    try:
        return await asking
    except OneBertError as error:
        if isinstance(error, BlankText) or error.code in _OF_ALL:
            raise
        return error


def _may_be_outdated(error: BaseException, remembered: bool) -> bool:
    """Whether other versions may be meant by now: a remembered one may have refused what the current one takes."""
    if remembered and isinstance(error, errors.InvalidInput | errors.TooLarge):
        return True
    # A front end's errors have the code of their kind, and no kind.
    return isinstance(error, OneBertError) and error.code == errors.RowGone.code


def _by_version(
    resolved: Sequence[Resolved], asked: Asked, numbers: Sequence[int], texts: Sequence[Text]
) -> list[Questions]:
    """The questions of each version; InvalidInput if it cannot answer them."""
    texts = texts if len(texts) > 1 else [*texts] * len(resolved)
    if resolved and resolved.count(resolved[0]) == len(resolved):
        return [Questions(resolved[0], asked, numbers, texts)]
    of: dict[Resolved, tuple[list[int], list[Text]]] = {}
    for version, number, text in zip(resolved, numbers, texts, strict=True):
        of_version = of.setdefault(version, ([], []))
        of_version[0].append(number)
        of_version[1].append(text)
    return [Questions(version, asked, *columns) for version, columns in of.items()]


def _blank(questions: Questions) -> Unanswered:
    return Unanswered(questions.facts.ref, BlankText(0, 1))


def _first(context: Context, wanted: Wanted, texts: Sequence[Text]) -> int:
    """Numbers the questions; a fan-out to every task, whose number is not known yet, comes last in its request."""
    return context.observed.number(max(len(texts), len(wanted.refs or ())))


def _earlier(context: Context) -> Context:
    """Returns the context with an earlier deadline, which leaves time to write the answers that are there."""
    left = context.deadline - time.monotonic()
    return replace(context, deadline=context.deadline - min(_WRITING * max(left, 0.0), _MAX_WRITING))
