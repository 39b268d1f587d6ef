"""From texts to answers: splits the texts, has the current versions compute, reads the logits."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

import numpy as np

from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.results import Prediction
from onebert_encoder.explaining.words import Explanation, explain_by_occlusion
from onebert_encoder.text.tokens import Pieces, Text
from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.answering.backend import Backend, Missed, Result, Wanted
from onebert_server.answering.explaining import LeftOut, leave_out, prediction_of
from onebert_server.answering.plan import WINDOW
from onebert_server.answering.reading import Question, Reading, read_together
from onebert_server.answering.seen import note
from onebert_server.answering.tokenizing import AT_ONCE, Split, Splitter, Tokenizing, characters_of
from onebert_server.fairness.places import PartByPart
from onebert_server.observed import ANSWER, TOKENIZE, Observed
from onebert_server.versions.facts import Facts
from onebert_store.errors import AnswerNotFinite, InvalidInput, OneBertError, WholeTextNeeded

# Threads that tokenize and read answers.
WORKERS = 4

# Up to `TINY_NUMBERS` logits are read on the event loop, in less than a third of a millisecond; a worker thread reads
# more, `PART_NUMBERS` at a time. Costs are in logits: each answer costs `_ANSWER_IN_NUMBERS` beside its own logits, a
# piece of a text with words left out costs `_PIECE_IN_NUMBERS`. A client's format may repeat the text beside each
# label: `_CHARACTERS_IN_NUMBER` characters cost one logit.
TINY_NUMBERS, PART_NUMBERS = 2048, 2**15
_ANSWER_IN_NUMBERS, _PIECE_IN_NUMBERS, _CHARACTERS_IN_NUMBER = 32, 8, 128

# `partial` requests: share of the remaining time that is reserved for writing the reply, capped in seconds.
_WRITING, _MAX_WRITING = 0.2, 0.1

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


class BlankText(InvalidInput):
    """A text without a token; `index` is its place among `count` texts."""

    RULE = "must not be blank: the tokenizer finds no token in it"

    def __init__(self, index: int, count: int) -> None:
        super().__init__(f"text {index + 1} of {count} {self.RULE}")
        self.index = index


class Answerer:
    """Answers for any mix of tasks, in any process: each answer names its version."""

    def __init__(self, splitters: Mapping[str, Splitter], backend: Backend, workers: Executor) -> None:
        self._splitters = splitters
        self._tokenizing = Tokenizing(splitters, workers)
        self._backend = backend
        # The workers that do not tokenize.
        self._reading = PartByPart(workers, WORKERS - AT_ONCE, PART_NUMBERS)

    def check(self, context: Context) -> None:
        """Before the body is read: raises Forbidden, or the errors of `Backend.check`."""
        context.principal.require_scope(Action.CLASSIFY)
        self._backend.check(context)

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
            OneBertError: see Backend; QueueFull also if too many texts wait for tokenization.
        """
        first = _first(context, wanted, texts) if first is None else first
        whole = wanted.asked.whole or wanted.asked.window is not None
        inputs = await self.split(context, texts, whole)
        if not blanks:
            _refuse_blank(inputs)
        try:
            results = await self._backend.compute(context, wanted, inputs)
        except OneBertError as error:
            if error.code != WholeTextNeeded.code:
                raise
            # Only the resolved version says whether it reads windows, and few versions do.
            inputs = await self.split(context, texts, whole=True)
            results = await self._backend.compute(context, wanted, inputs)
        for result in results:
            if not (blanks or result.computed):
                raise BlankText(result.input, len(texts))
        return await self._shown(context, texts, inputs, results, wanted.asked, show, first)

    async def answer_each(
        self,
        context: Context,
        wanted: Wanted,
        texts: Sequence[Text],
        show: Callable[[int, Answered | Unanswered], T],
        first: int | None = None,
    ) -> list[T]:
        """Like `answer`, but a question that fails, or is late slightly before the deadline, gets its own error."""
        first = _first(context, wanted, texts) if first is None else first
        inputs = await self.split(context, texts, whole=True)
        _refuse_blank(inputs)
        results = await self._backend.compute_each(_earlier(context), wanted, inputs)
        return await self._shown(context, texts, inputs, results, wanted.asked, show, first)

    async def answer_explained(
        self, context: Context, wanted: Wanted, texts: Sequence[Text], show: Callable[[int, Answered], T]
    ) -> list[T]:
        """Like `answer`, by one version, with the words that each answer depends on.

        A second request asks the same version again, each time without one of the words.

        Raises:
            InvalidInput: the answers of this task type are not explained.
            TooLarge: the texts, each repeated once per word, are too long together.
        """
        answered = await self.answer(context, wanted, texts, lambda _, one: one)
        facts, readings = answered[0].facts, [one.read() for one in answered]
        predictions = [prediction_of(reading, facts) for reading in readings]
        windows = any(reading.windows is not None for reading in readings)
        principal = context.principal.name
        inputs = await self._tokenizing.split(principal, texts, whole=windows)
        asked = [
            Question(text, facts, wanted.asked, reading.tokens, reading.truncated, pieces=pieces)
            for text, reading, pieces in zip(texts, readings, inputs[facts.base], strict=True)
        ]
        # One piece of work: the number of words that each text leaves out depends on all texts.
        cost = _PIECE_IN_NUMBERS * sum(sum(pieces.lengths) for pieces in inputs[facts.base])
        tokenizer = self._splitters[facts.base].tokenizer
        questions = await self.here_or_beside(principal, [cost], lambda _: leave_out(asked, readings, tokenizer))
        left = await self._without(context, facts, wanted.asked, predictions, questions)

        def shown(part: slice) -> list[T]:
            each = zip(answered[part], predictions[part], questions[part], left[part], strict=True)
            return [
                show(index, one._replace(explanation=explain_by_occlusion(prediction, question.stretches, scores)))
                for index, (one, prediction, question, scores) in enumerate(each, part.start or 0)
            ]

        return await self.here_or_beside(principal, [len(facts.labels) + _ANSWER_IN_NUMBERS] * len(texts), shown)

    async def _without(
        self,
        context: Context,
        facts: Facts,
        asked: Asked,
        predictions: Sequence[Prediction],
        questions: Sequence[LeftOut],
    ) -> list[list[float]]:
        """Returns per question the score of its answer's label without each word, from the version that answered."""
        texts = [text for one in questions for text in one.texts]
        if not texts:
            return [[] for _ in questions]
        best = [answer.best for answer, one in zip(predictions, questions, strict=True) for _ in one.texts]
        # Quotas count these tokens but no request, and task metrics see nothing: no client asked these questions.
        observed = Observed(span=context.observed.span)
        wanted = Wanted([facts.ref] * len(texts), asked=replace(asked, top_k=1, only_scores=True))

        def read(index: int, answered: Answered) -> float:
            return prediction_of(answered.read(), facts).scores[best[index]]

        found = iter(await self.answer(replace(context, counted=True, observed=observed), wanted, texts, read))
        context.observed.add(observed.seconds)
        return [[next(found) for _ in one.texts] for one in questions]

    async def split(self, context: Context, texts: Sequence[Text], whole: bool) -> Split:
        """Splits texts into pieces for every base; see `Tokenizing.split`."""
        began = time.monotonic()
        inputs = await self._tokenizing.split(context.principal.name, texts, whole)
        context.observed.phase(TOKENIZE, began, time.monotonic())
        return inputs

    async def _shown(
        self,
        context: Context,
        texts: Sequence[Text],
        inputs: Split,
        results: Sequence[Result | Missed],
        asked: Asked,
        show: Callable[[int, Any], T],
        first: int,
    ) -> list[T]:
        """Reads and shows all answers, part by part; `first` is the number of the first one."""
        began, observed = time.monotonic(), context.observed

        def shown(part: slice) -> list[T]:
            start, numbered = part.start or 0, []
            for index, one in enumerate(results[part], start):
                if isinstance(one, Result) and one.computed:
                    of_base = inputs[one.facts.base][one.input]
                    numbered.append((first + index, self._question(texts[one.input], of_base, one, asked), one))
            answered = iter(self._read(context, numbered) if numbered else ())
            return [show(index, _unanswered(one) or next(answered)) for index, one in enumerate(results[part], start)]

        costs = [_cost(texts[one.input], one) for one in results]
        made = await self.here_or_beside(context.principal.name, costs, shown)
        observed.phase(ANSWER, began, time.monotonic())
        return made

    async def here_or_beside(self, principal: str, numbers: Sequence[int], work: Callable[[slice], list[T]]) -> list[T]:
        """Returns the results of all pieces, made here, or in worker threads if their costs, in logits, are large."""
        if sum(numbers) <= TINY_NUMBERS:
            return work(slice(0, None))
        return await self._reading.run(principal, numbers, work)

    def _read(self, context: Context, numbered: Sequence[tuple[int, Question, Result]]) -> list[Answered]:
        """Reads and notes answers, each with the number of its question in the request."""
        parts = [part.logits for _, _, result in numbered for part in result.computed]
        flat = np.concatenate([part.ravel() for part in parts])
        sizes = np.array([part.size for part in parts], np.int32)
        numbers, questions, results = zip(*numbered, strict=True)
        readings = read_together(questions, flat, sizes, self._splitters)
        note(context, numbers, questions, [result.keeping for result in results], readings)
        return [Answered(question.facts, reading) for question, reading in zip(questions, readings, strict=True)]

    def _question(self, text: Text, pieces: Pieces, result: Result, asked: Asked) -> Question:
        facts, cuts = result.facts, [part.kept for part in result.computed]
        windows = result.computed[0].role == WINDOW
        kept = tuple((0, length) for length in pieces.lengths) if windows else cuts[0]
        measured = self._splitters[facts.base].tokenizer.reading(facts.pooling).measure(pieces, kept)
        return Question(text, facts, asked, *measured, cuts, windows, pieces)


def _first(context: Context, wanted: Wanted, texts: Sequence[Text]) -> int:
    """Numbers the questions; a fan-out to every task, whose number is not known yet, comes last in its request."""
    return context.observed.number(max(len(texts), len(wanted.refs or ())))


def _unanswered(one: Result | Missed) -> Unanswered | None:
    if isinstance(one, Missed):
        return Unanswered(one.ref, one.error)
    return None if one.computed else Unanswered(one.facts.ref, BlankText(0, 1))


def _refuse_blank(inputs: Split) -> None:
    """Raises BlankText for a text in which no base finds a token, before anything is computed."""
    for index, of_text in enumerate(several := [*zip(*inputs.values(), strict=True)]):
        if not any(any(pieces.lengths) for pieces in of_text):
            raise BlankText(index, len(several))


def _cost(text: Text, one: Result | Missed) -> int:
    """Returns the cost of reading an answer and of writing it in a client's format, in logits."""
    if isinstance(one, Missed):
        return _ANSWER_IN_NUMBERS
    repeated = len(one.facts.labels) * characters_of(text) // _CHARACTERS_IN_NUMBER
    return sum(part.logits.size + _ANSWER_IN_NUMBERS for part in one.computed) + repeated


def _earlier(context: Context) -> Context:
    """Returns the context with an earlier deadline, which leaves time to write the answers that are there."""
    left = context.deadline - time.monotonic()
    return replace(context, deadline=context.deadline - min(_WRITING * max(left, 0.0), _MAX_WRITING))
