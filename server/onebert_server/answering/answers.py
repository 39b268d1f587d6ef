"""From texts to answers: split them, have the versions of this moment compute, read the logits."""

import asyncio
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np

from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.results import Prediction
from onebert_encoder.explaining.words import Explanation, explain_by_occlusion
from onebert_encoder.text.tokenizer import Tokenizer
from onebert_encoder.text.tokens import Pieces, Text
from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.answering.backend import Backend, Missed, Result, Wanted
from onebert_server.answering.explaining import LeftOut, leave_out, prediction_of
from onebert_server.answering.plan import Plan, Question, Reading, Sequences
from onebert_server.answering.seen import seen
from onebert_server.answering.tokenizing import Tokenizing
from onebert_server.telemetry.observed import ANSWER, TOKENIZE, Observed
from onebert_server.versions.facts import Facts
from onebert_store.errors import AnswerNotFinite, OneBertError, WholeTextNeeded

# Threads that tokenize and read answers.
WORKERS = 4

# Up to so many logits are read on the event loop, which takes less than a third of a millisecond; more are read by a
# worker thread. Each answer has a cost of its own, about that of reading `_ANSWER_IN_NUMBERS` logits, and so has each
# piece of a text whose words are left out.
TINY_NUMBERS = 2048
_ANSWER_IN_NUMBERS, _PIECE_IN_NUMBERS = 32, 8

# Of the time of a request that takes what is there at its end: kept for writing that, at most so many seconds.
_WRITING, _MAX_WRITING = 0.2, 0.1

T = TypeVar("T")


class Answered(NamedTuple):
    """What one version says of one input, or why it says nothing."""

    facts: Facts
    reading: Reading | AnswerNotFinite

    def read(self) -> Reading:
        """What was read.

        Raises:
            AnswerNotFinite: the answer is no number.
        """
        if isinstance(self.reading, Reading):
            return self.reading
        raise self.reading


class Explained(NamedTuple):
    """What one version says of one input, and the words that this is owed to."""

    answered: Answered
    explanation: Explanation


class Unanswered(NamedTuple):
    """A question of a request that takes answers without the rest, and why it has none."""

    ref: str
    error: OneBertError


class Answerer:
    """Answers for any mix of tasks, in any process; every answer is by the version that it names.

    Args:
        tokenizer: the base's.
        max_length: tokens of the longest sequence that the base takes.
        backend: resolves and computes.
        workers: threads for what would hold up the event loop.
        plan: the one that the backend expands questions by.
    """

    def __init__(
        self, tokenizer: Tokenizer, max_length: int, backend: Backend, workers: Executor, plan: Plan | None = None
    ) -> None:
        self._tokenizer = tokenizer
        self._tokenizing = Tokenizing(tokenizer, max_length, workers)
        self._backend = backend
        self._workers = workers
        self._plan = plan or Sequences()

    def check(self, context: Context) -> None:
        """Refuses what would be refused however small it were: for before the body is read.

        Raises:
            Forbidden: the principal may not have anything classified.
            QueueFull, OverShare, ShuttingDown, EngineFailed: see Backend.
        """
        context.principal.require_scope(Action.CLASSIFY)
        self._backend.check(context)

    async def answer(
        self,
        context: Context,
        wanted: Wanted,
        texts: Sequence[Text],
        render: Callable[[Iterator[Answered]], T],
    ) -> T:
        """Answers the i-th text with the i-th version; one text alone with every version.

        Args:
            context: of the request.
            wanted: the versions.
            texts: texts or pairs.
            render: makes of the answers what the caller needs. Each is read when `render` takes it, in a worker thread
                where there is much to read, so that never more are held than `render` keeps.

        Raises:
            QueueFull: as many texts wait to be tokenized as may.
            OneBertError: see Backend.
        """
        began = time.monotonic()
        whole = wanted.asked.whole or wanted.asked.window is not None
        inputs = await self._tokenizing.split(context.principal.name, texts, whole=whole)
        context.observed.phase(TOKENIZE, began, time.monotonic())
        try:
            results = await self._backend.compute(context, wanted, inputs)
        except OneBertError as error:
            if error.code != WholeTextNeeded.code:
                raise
            # Only what a reference means now says whether its version reads windows, which few do.
            began = time.monotonic()
            inputs = await self._tokenizing.split(context.principal.name, texts, whole=True)
            context.observed.phase(TOKENIZE, began, time.monotonic())
            results = await self._backend.compute(context, wanted, inputs)
        began = time.monotonic()
        work = partial(self._read, texts, inputs, results, wanted.asked, render, context.observed)
        numbers = 0
        for result in results:
            for one in result.computed:
                numbers += one.logits.size + _ANSWER_IN_NUMBERS
        rendered = await self._here_or_beside(numbers, work)
        context.observed.phase(ANSWER, began, time.monotonic())
        return rendered

    async def answer_each(
        self,
        context: Context,
        wanted: Wanted,
        texts: Sequence[Text],
        render: Callable[[Iterator[Answered | Unanswered]], T],
    ) -> T:
        """As `answer`, of versions that are named; what is wrong with one question, or late, is said of that one.

        Args:
            context: of the request; what is late is given up a little before the deadline, for the rest to be written.
            wanted: with references.
            texts: texts or pairs.
            render: see `answer`.

        Raises:
            OneBertError: see Backend.
        """
        began, observed = time.monotonic(), context.observed
        inputs = await self._tokenizing.split(context.principal.name, texts, whole=True)
        observed.phase(TOKENIZE, began, time.monotonic())
        results = await self._backend.compute_each(_earlier(context), wanted, inputs)
        began = time.monotonic()
        computed = [one for result in results if isinstance(result, Result) for one in result.computed]
        asked = wanted.asked

        def work() -> T:
            return render(
                Unanswered(one.ref, one.error)
                if isinstance(one, Missed)
                else _noted(observed, self._read_one(texts[one.input], inputs[one.input], one, asked))
                for one in results
            )

        rendered = await self._here_or_beside(sum(one.logits.size + _ANSWER_IN_NUMBERS for one in computed), work)
        observed.phase(ANSWER, began, time.monotonic())
        return rendered

    async def answer_explained(
        self,
        context: Context,
        wanted: Wanted,
        texts: Sequence[Text],
        render: Callable[[Iterator[Explained]], T],
    ) -> T:
        """As `answer`, by one version, with the words that each answer is owed to.

        The version that has answered is asked again, each time without one of the words, by one request.

        Args:
            context: of the request.
            wanted: one reference, as often as there are texts.
            texts: texts or pairs.
            render: see `answer`.

        Raises:
            InvalidInput: the answers of this task type are not explained.
            TooLarge: the texts are too long together, each as often as it has words.
            OneBertError: see `answer`.
        """
        answered = await self.answer(context, wanted, texts, list)
        facts, readings = answered[0].facts, [one.read() for one in answered]
        predictions = [prediction_of(reading, facts) for reading in readings]
        windows = any(reading.windows is not None for reading in readings)
        inputs = await self._tokenizing.split(context.principal.name, texts, whole=windows)
        asked = [Question(*one, facts, wanted.asked) for one in zip(texts, inputs, strict=True)]
        work = partial(leave_out, asked, readings, self._tokenizer)
        questions = await self._here_or_beside(_PIECE_IN_NUMBERS * sum(sum(one.lengths) for one in inputs), work)
        left = await self._without(context, facts, wanted.asked, predictions, questions)
        explained = [
            Explained(one, explain_by_occlusion(prediction, question.stretches, scores))
            for one, prediction, question, scores in zip(answered, predictions, questions, left, strict=True)
        ]
        numbers = len(texts) * (len(facts.labels) + _ANSWER_IN_NUMBERS)
        return await self._here_or_beside(numbers, lambda: render(iter(explained)))

    async def _without(
        self,
        context: Context,
        facts: Facts,
        asked: Asked,
        predictions: Sequence[Prediction],
        questions: Sequence[LeftOut],
    ) -> list[list[float]]:
        """By question, the score of its answer's label without each of the words, by the version that has answered."""
        texts = [text for one in questions for text in one.texts]
        if not texts:
            return [[] for _ in questions]
        best = [answer.best for answer, one in zip(predictions, questions, strict=True) for _ in one.texts]
        # Of this, quotas count the tokens and no request, and metrics of tasks see nothing: nobody has asked it.
        observed = Observed(span=context.observed.span)
        wanted = Wanted([facts.ref] * len(texts), asked=replace(asked, top_k=1, only_scores=True))

        def read(answered: Iterator[Answered]) -> list[float]:
            both = zip(answered, best, strict=True)
            return [float(prediction_of(one.read(), facts).scores[label]) for one, label in both]

        found = iter(await self.answer(replace(context, counted=True, observed=observed), wanted, texts, read))
        context.observed.add(observed.seconds)
        return [[next(found) for _ in one.texts] for one in questions]

    async def _here_or_beside(self, numbers: int, work: Callable[[], T]) -> T:
        """Reads so many numbers here, or in a worker thread where they are many."""
        if numbers <= TINY_NUMBERS:
            return work()
        return await asyncio.get_running_loop().run_in_executor(self._workers, work)

    def _read(
        self,
        texts: Sequence[Text],
        inputs: Sequence[Pieces],
        results: Sequence[Result],
        asked: Asked,
        render: Callable[[Iterator[Answered]], T],
        observed: Observed,
    ) -> T:
        answers = (self._read_one(texts[one.input], inputs[one.input], one, asked) for one in results)
        return render(answers if observed.answers is None else map(partial(_noted, observed), answers))

    def _read_one(self, text: Text, pieces: Pieces, result: Result, asked: Asked) -> Answered:
        facts = result.facts
        if not all(np.isfinite(one.logits).all() for one in result.computed):
            error = AnswerNotFinite(f"the answer of {facts.ref} to this input is not a finite number")
            return Answered(facts, error)
        question = Question(text, pieces, facts, asked)
        return Answered(facts, self._plan.reduce(question, result.computed, self._tokenizer))


def _noted(observed: Observed, answered: Answered) -> Answered:
    """Notes what is seen of an answer from outside."""
    reading = answered.reading if isinstance(answered.reading, Reading) else None
    if observed.answers is not None:
        observed.answers.append(seen(answered.facts.task, reading and reading.answer))
    observed.tokens += reading.tokens if reading else 0
    return answered


def _earlier(context: Context) -> Context:
    """The context of questions whose request wants to be answered in time without those that are late."""
    left = context.deadline - time.monotonic()
    return replace(context, deadline=context.deadline - min(_WRITING * max(left, 0.0), _MAX_WRITING))
