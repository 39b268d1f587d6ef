"""From texts to answers: resolves references, has the versions compute, and shows what they answer."""

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from operator import attrgetter
from typing import Any, TypeVar

from onebert_encoder.text.tokenizer import CutOnce
from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.answering.asking import Asking
from onebert_server.answering.explaining import explain
from onebert_server.answering.gateway import Gateway, Item, Resolutions, Resolved, ShadowQuestions, Wanted
from onebert_server.answering.plan import BlankText, Question, Questions
from onebert_server.answering.reading import (
    ANSWER_IN_NUMBERS,
    TINY_NUMBERS,
    Answered,
    Reading,
    Unread,
    items_of,
    note,
    read_together,
    unread,
)
from onebert_server.answering.tokenizing import AT_ONCE, Splitter, Tokenizing
from onebert_server.answering.turn import Turn
from onebert_server.fairness.places import PartByPart
from onebert_server.versions.facts import Facts, Identity, Shadowing
from onebert_store import errors
from onebert_store.errors import OneBertError

# Threads that tokenize and read answers.
WORKERS = 4
# Up to `TINY_NUMBERS` logits are read on the event loop; a worker thread reads more, `PART_NUMBERS` at a time.
PART_NUMBERS = 2**15
# A sequence costs as much to cut as so many characters to tokenize.
SEQUENCE_IN_CHARACTERS = 64

# Tries to have a version compute that changes whenever it has been resolved, as beside an alias that moves a hundred
# times a second on a busy machine.
_TRIES = 16

# `partial` requests: shares of the remaining time that are reserved for writing the reply, and for computing once all
# versions are loaded that can be; capped in seconds.
_WRITING, _COMPUTING = (0.2, 0.1), (0.5, 1.0)
# Errors of some questions that end a `partial` request all the same.
_OF_ALL = frozenset({errors.Forbidden.code, errors.OverQuota.code, errors.ShuttingDown.code})

T = TypeVar("T")
_ALL, _FACTS = slice(0, None), attrgetter("facts")


class Answerer:
    """Answers for any mix of tasks, in any process: each answer names its version."""

    def __init__(self, splitters: Mapping[str, Splitter], gateway: Gateway, workers: Executor) -> None:
        self._splitters, self._gateway = splitters, gateway
        self.tokenizing = Tokenizing(splitters, workers)
        self._resolutions = Resolutions()
        self._turn = Turn(gateway, splitters)
        # Those that do not tokenize; costs are in logits.
        self.workers = PartByPart(workers, WORKERS - AT_ONCE, PART_NUMBERS, TINY_NUMBERS)
        self._comparing: set[asyncio.Task[None]] = set()

    def refuse_early(self, context: Context) -> None:
        """Before the body is read: raises Forbidden, or the errors of `Gateway.refuse_early`."""
        if not context.principal.classifies_all:
            context.principal.require_scope(Action.CLASSIFY)
        self._gateway.refuse_early(context)

    async def live(self, context: Context, refs: Sequence[str] | None) -> list[Facts]:
        """Returns the versions of references, or the live ones of all tasks that take a text; see `Gateway.resolve`.

        The versions of references are loaded, the live ones of all tasks are not.
        """
        versions = await self._gateway.resolve(context, Wanted(refs, only_facts=refs is None))
        return [version.facts for version in versions if isinstance(version, Resolved)]

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
            show: makes the caller's result of an answer and its index. It runs in a worker thread if there is much to
                read, so large results are best encoded there. Answers are read one after the other, principals
                alternate, and a cancelled request reads no more.
            blanks: whether `show` gets an Unanswered for a text in which the base of its version finds no token.
            first: the number of the first question in its request, if it has one already; see `Observed.number`.

        Raises:
            BlankText: a text is blank, and `blanks` are not shown; of a partial answer, if no base finds a token.
            OneBertError: see Gateway; QueueFull also if too many texts wait for tokenization. A partial answer
                raises only Forbidden, OverQuota and ShuttingDown; another error is an Unanswered of each question.
        """
        if first is None:
            # A fan-out to every task, whose number is not known yet, comes last in its request.
            first = context.observed.number(max(len(texts), len(wanted.refs or ())))
        if wanted.partial:
            asking = Asking(_earlier(context, *_WRITING), wanted, texts, None)
            await self._ask_partly(asking)
        else:
            asking = Asking(context, wanted, texts, None if wanted.refs is None else blanks)
            await self._ask(asking)
        return await self._show(asking, show, first)

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
        explanations = await explain(self.answer, self.workers, self.tokenizing, context, wanted.asked, texts, *read)

        def shown(part: slice) -> list[T]:
            pairs = zip(answered[part], explanations[part], strict=True)
            explained = [answer._replace(explanation=explanation()) for answer, explanation in pairs]
            return [show(index, answer) for index, answer in enumerate(explained, part.start or 0)]

        costs = [len(answer.facts.labels) + ANSWER_IN_NUMBERS for answer in answered]
        return await self.workers.run(context.principal.name, costs, shown)

    async def _ask_partly(self, asking: Asking) -> None:
        """Has the versions compute that can; whatever else goes wrong is the error of the questions without another."""
        error: OneBertError = errors.DeadlineExceeded("the answer was not there when the request's time was over")
        try:
            async with asyncio.timeout(asking.context.remaining):
                await self._ask(asking)
                return
        except TimeoutError:
            pass
        except OneBertError as failure:
            if isinstance(failure, BlankText) or failure.code in _OF_ALL:
                raise
            error = failure
        asking.miss(error)

    async def _ask(self, asking: Asking) -> None:
        """Has the current versions compute; resolves them again if remembered ones are not current any more."""
        context, refs = asking.context, asking.wanted.refs
        refusal: tuple[OneBertError, list[Identity | str]] | None = None
        for _ in range(_TRIES):
            # After a refusal never a remembered version: the next question may have remembered the same one since.
            remembered = None if refusal or refs is None else self._resolutions.find(refs, context)
            versions = remembered or await self._current(asking)
            try:
                if refusal is not None and _identities(versions) == refusal[1]:
                    raise refusal[0]
                asking.begin(versions, self._splitters)
                if asking.is_long or asking.in_pieces:
                    await self._tokenize(asking)
                await self._turn.ask(asking)
                if not (remembered and asking.missed):
                    return
                # A partial answer: remembered versions may have refused what the current ones take.
                if _identities(versions) == _identities(await self._current(asking)):
                    return
            except BaseException as error:
                self._turn.withdraw(asking)
                if not _may_be_outdated(error, remembered is not None):
                    if isinstance(error, errors.InvalidInput | errors.TooLarge):
                        self._turn.count(asking)
                    raise
                if isinstance(error, errors.InvalidInput | errors.TooLarge):
                    refusal = error, _identities(versions)
            self._resolutions.forget(zip(refs or (), versions, strict=False))
        raise errors.VersionUnavailable("the version changes whenever it is asked", 1)

    async def _current(self, asking: Asking) -> Sequence[Resolved | OneBertError]:
        context, wanted = asking.context, asking.wanted
        if wanted.refs is None:
            return await self._gateway.resolve(context, wanted)
        distinct = [*dict.fromkeys(wanted.refs)]
        context = _earlier(context, *_COMPUTING) if wanted.partial else context
        known = dict(zip(distinct, await self._gateway.resolve(context, replace(wanted, refs=distinct)), strict=True))
        self._resolutions.remember({ref: version for ref, version in known.items() if isinstance(version, Resolved)})
        return [known[ref] for ref in wanted.refs]

    async def _tokenize(self, asking: Asking) -> None:
        """Tokenizes texts before their turn, once for each base: to ids, if these are enough, else cuts their pieces.

        All is measured before anything is cut: what is too large costs no more than its tokens.
        """
        principal, alike = asking.context.principal.name, dict[tuple[str, bool], list[Questions]]()
        for group in asking.groups:
            if asking.is_long or group.in_pieces:
                alike.setdefault((group.facts.base, group.in_pieces), []).append(group)
        for (base, in_pieces), each in alike.items():
            whole, placed = any(group.reads_to_end for group in each), any(group.facts.per_token for group in each)
            known = asking.tokenized.setdefault((base, in_pieces, whole, placed), {})
            texts: list[Any] = [*dict.fromkeys([text for group in each for text in group.texts if text not in known])]
            if texts:
                made: Sequence[Any]
                if in_pieces:
                    made = await self.tokenizing.split(principal, base, texts, whole, placed)
                else:
                    made = await self.tokenizing.ids(principal, base, texts, whole)
                known.update(zip(texts, made, strict=True))
            for group in each:
                asking.measure(group, self._splitters, known)
        inputs = [(group, place) for group in asking.groups for place in range(len(group.sequences))]
        costs, once = [SEQUENCE_IN_CHARACTERS * group.sequences[place] for group, place in inputs], CutOnce()

        def cut(part: slice) -> list[None]:
            for group, place in inputs[part]:
                group.cut_pieces(place, self._splitters[group.facts.base].tokenizer, once)
            return []

        await self.tokenizing.run(principal, costs, cut)

    async def _show(self, asking: Asking, show: Callable[[int, Any], T], first: int) -> list[T]:
        """Shows all answers, and reads each one just before; `first` is the number of the first one."""
        began, context, refs = time.monotonic(), asking.context, asking.wanted.refs
        numbers, versions, questions = list[int](), list[Resolved](), list[Question]()
        for group in asking.groups:
            numbers += group.numbers
            versions += group.versions
            questions += group.items
        if refs is None:
            # Blank texts have no places among the answers.
            ranks = dict(zip(sorted(numbers), range(len(numbers)), strict=True))
            numbers = [*map(ranks.__getitem__, numbers)]
        readings = asking.readings
        logits = unread(asking.groups) if questions and readings is None else None

        def shown(part: slice) -> list[T]:
            read = (readings or ())[part] if logits is None else read_together(*logits.part(part), self._splitters)
            note(context, first, numbers[part], questions[part], versions[part], read)
            return [*map(show, numbers[part], map(Answered, map(_FACTS, questions[part]), read))]

        try:
            if logits is None:
                answers = shown(_ALL)
            else:
                answers = await self.workers.run(context.principal.name, logits.costs(), shown)
        finally:
            for group in asking.groups:
                if group.resolved.shadows:
                    # Begins once the caller's answer is written as far as it does not wait.
                    comparing = asyncio.ensure_future(
                        self._compare(context.principal.name, group, group.resolved.shadows)
                    )
                    self._comparing.add(comparing)
                    comparing.add_done_callback(self._comparing.discard)
        asking.note_phases(began)
        if len(asking.groups) == 1 and not (asking.missed or asking.groups[0].blank):
            return answers
        by_number = dict(zip(numbers, answers, strict=True))
        by_number |= {number: show(number, missed) for number, missed in asking.unanswered().items()}
        return [by_number[number] for number in sorted(by_number)]

    async def _compare(self, principal: str, group: Questions, shadows: Shadowing) -> None:
        """Tells the shadows of a version's questions how it has answered, by its own rules."""
        if group.logits is None:
            return
        asked = group.asked.of_shadows
        logits = Unread([question._replace(asked=asked) for question in group.items], *group.logits)

        def answers(part: slice) -> list[tuple[Item, ...] | None]:
            readings = read_together(*logits.part(part), self._splitters)
            return [
                items_of(group.facts, reading.answer) if isinstance(reading, Reading) else None for reading in readings
            ]

        answered = await self.workers.run(principal, logits.costs(), answers)
        self._gateway.shadow(ShadowQuestions(shadows, group.texts, answered, asked))


def _identities(versions: Sequence[Resolved | OneBertError]) -> list[Identity | str]:
    return [version.facts.identity if isinstance(version, Resolved) else version.code for version in versions]


def _may_be_outdated(error: BaseException, remembered: bool) -> bool:
    """Whether other versions may be meant by now: a remembered one may have refused what the current one takes."""
    if remembered and isinstance(error, errors.InvalidInput | errors.TooLarge):
        return True
    # A front end's errors have the code of their kind, and no kind.
    return isinstance(error, OneBertError) and error.code == errors.RowGone.code


def _earlier(context: Context, share: float, most: float) -> Context:
    """Returns the context with an earlier deadline, which leaves a share of its time, at most so many seconds."""
    left = context.deadline - time.monotonic()
    return replace(context, deadline=context.deadline - min(share * max(left, 0.0), most))
