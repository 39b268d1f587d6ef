"""From texts to answers: resolves references, has the versions compute, and shows what they answer."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Any, TypeVar

from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.answering.computing import Computing
from onebert_server.answering.explaining import explain
from onebert_server.answering.gateway import Gateway, Wanted
from onebert_server.answering.reading.logits import ANSWER_IN_NUMBERS
from onebert_server.answering.showing import Answered, Showing, Unanswered
from onebert_server.answering.sizes import AnswerSize
from onebert_server.answering.tokenizing import AT_ONCE, Splitter, Tokenizing
from onebert_server.answering.turn import Asking, Part
from onebert_server.fairness.places import PartByPart
from onebert_store.errors import OneBertError

# Threads that tokenize and read answers.
WORKERS = 4

# Up to `TINY_NUMBERS` logits are read on the event loop; a worker thread reads more, `PART_NUMBERS` at a time.
PART_NUMBERS = 2**15

# `partial` requests: share of the remaining time that is reserved for writing the reply, capped in seconds.
_WRITING, _MAX_WRITING = 0.2, 0.1

T = TypeVar("T")


class Answerer:
    """Answers for any mix of tasks, in any process: each answer names its version."""

    def __init__(self, splitters: Mapping[str, Splitter], gateway: Gateway, workers: Executor) -> None:
        self._gateway = gateway
        self.tokenizing = Tokenizing(splitters, workers)
        computing = self._computing = Computing(splitters, gateway, self.tokenizing)
        self.live = computing.live
        # The workers that do not tokenize.
        self.showing = Showing(splitters, gateway, PartByPart(workers, WORKERS - AT_ONCE, PART_NUMBERS))

    def check(self, context: Context) -> None:
        """Before the body is read: raises Forbidden, or the errors of `Gateway.check`."""
        if not context.principal.classifies_all:
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
        part = Part(len(texts), AnswerSize(), blank)
        if first is None:
            # A fan-out to every task, whose number is not known yet, comes last in its request.
            first = context.observed.number(max(len(texts), len(wanted.refs or ())))
        asking = await self._computing.compute(context, wanted, texts, range(len(wanted.refs or ())), part)
        return await self.showing.show(context, wanted, [asking], {}, show, first)

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
        part = Part(len(texts), AnswerSize(), None)
        refs = wanted.refs or ()
        first = context.observed.number(max(len(texts), len(refs))) if first is None else first
        outcomes = await self._computing.compute_each(_earlier(context), wanted, texts, part)
        missed = {
            number: Unanswered(refs[number], error)
            for number, error in enumerate(outcomes)
            if isinstance(error, OneBertError)
        }
        askings = [asking for asking in outcomes if isinstance(asking, Asking)]
        return await self.showing.show(context, wanted, askings, missed, show, first)

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
        ways = self.answer, self.showing.here_or_beside, self.tokenizing
        explanations = await explain(*ways, context, wanted.asked, texts, *read)

        def shown(part: slice) -> list[T]:
            pairs = zip(answered[part], explanations[part], strict=True)
            explained = [answer._replace(explanation=explanation()) for answer, explanation in pairs]
            return [show(index, answer) for index, answer in enumerate(explained, part.start or 0)]

        costs = [len(answer.facts.labels) + ANSWER_IN_NUMBERS for answer in answered]
        return await self.showing.here_or_beside(context.principal.name, costs, shown)


def _earlier(context: Context) -> Context:
    """Returns the context with an earlier deadline, which leaves time to write the answers that are there."""
    left = context.deadline - time.monotonic()
    return replace(context, deadline=context.deadline - min(_WRITING * max(left, 0.0), _MAX_WRITING))
