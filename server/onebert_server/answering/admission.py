"""Admission in the engine's process: resolves and pins versions, cuts the inputs, submits them to the engine."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.scores import Logits
from onebert_encoder.text.tokenizer import CutOnce
from onebert_encoder.text.tokens import Pieces
from onebert_server.access.context import Context
from onebert_server.access.principal import Action
from onebert_server.answering.arrivals import Arrivals
from onebert_server.answering.backend import Missed, Result, Wanted
from onebert_server.answering.plan import Computed, ComputedQuestion, Planned, expand
from onebert_server.answering.rates import Rates
from onebert_server.answering.resolution import refusal
from onebert_server.answering.sizes import AnswerSize
from onebert_server.answering.tokenizing import Split, Splitter
from onebert_server.engine.engine import Engine
from onebert_server.engine.host import Host
from onebert_server.engine.request import Item, Request
from onebert_server.limits import MAX_FANOUT
from onebert_server.observed import FORWARD, QUEUE, Kept, Observed
from onebert_server.versions.residency.residents import Residents
from onebert_server.versions.version import Held, Version
from onebert_store.errors import DeadlineExceeded, HeaderNeeded, InvalidInput, OneBertError, WholeTextNeeded

if TYPE_CHECKING:
    from onebert_server.telemetry.tracing import Tracing


class Admission:
    """The Backend of the engine's process: the directory resolves, the engine computes.

    `computed` and `sampled` are the hooks: questions with shadows are for the first, and without any of the second no
    answer is chosen. `rates` has what is left of the principals' quotas.
    """

    def __init__(
        self,
        engine: Engine,
        residents: Residents,
        tracing: "Tracing | None" = None,
        computed: Sequence[Callable[[ComputedQuestion], None]] = (),
        sampled: Sequence[Callable[[Sequence[Kept], int], None]] = (),
    ) -> None:
        self._engine = engine
        self._residents = residents
        self._directory = residents.directory
        self._computed = computed
        self._sampled = sampled
        self._tracing = tracing
        self.rates = Rates()
        self._waking_from: asyncio.AbstractEventLoop | None = None
        self._arrivals: Arrivals[list[Logits]] | None = None

    @property
    def splitters(self) -> dict[str, Splitter]:
        """The tokenizers of the hosts, by the digest of their bases."""
        hosts = self._engine.hosts
        return {digest: Splitter(host.base.tokenizer, host.base.spec.max_length) for digest, host in hosts.items()}

    def check(self, context: Context) -> None:
        self._check_rates(context)
        self._engine.check(context)

    def _check_rates(self, context: Context) -> None:
        # The first part of a request in parts was admitted; quotas do not refuse the other parts any more.
        if not context.counted:
            self.rates.check(context.principal)

    async def compute(self, context: Context, wanted: Wanted, inputs: Split) -> list[Result]:
        """The versions stay unchanged until the engine is done, even if an alias moves or a version is deleted."""
        began, observed = time.monotonic(), context.observed
        await self._take_up(context)
        held = self._pin(wanted, context, inputs)
        try:
            _check_headers(context)
            await self._residents.ready(held, context)
            self._check_rates(context)
            expanded = self._expand(held, inputs, wanted.asked)
            submitted = self._submit(expanded, context, 0 if context.counted else 1)
        except BaseException:
            self._directory.unpin(held)
            raise
        logits = await self._logits(submitted)
        _note(observed, began, [one.request for one in submitted])
        return [self._result(question, logits[question.host]) for question in expanded]

    async def compute_each(self, context: Context, wanted: Wanted, inputs: Split) -> list[Result | Missed]:
        """All references are resolved at one moment, and equal inputs share work."""
        began, observed = time.monotonic(), context.observed
        await self._take_up(context)
        context.principal.require_scope(Action.CLASSIFY)
        self._check_rates(context)
        one_by_one = _OneByOne(context, wanted.asked, CutOnce(), AnswerSize(wanted.asked), [], [])
        asking: list[Callable[[], Awaitable[Result | Missed]]] = []
        # A single input is for all references.
        several = len(next(iter(inputs.values()))) > 1
        try:
            for index, ref in enumerate(wanted.refs or ()):
                number = index if several else 0
                try:
                    [versions] = self._directory.pin([ref], context.principal, context.key_of)
                except OneBertError as error:
                    asking.append(partial(_at_once, Missed(ref, number, error)))
                else:
                    one_by_one.pinned.append(versions)
                    asking.append(partial(self._compute_one, versions, ref, number, inputs, one_by_one))
            _check_headers(context)
            self.rates.count(context.principal, requests=0 if context.counted else 1, tokens=0)
            found = await asyncio.gather(*(ask() for ask in asking))
        finally:
            # Unpins the versions of questions that never started, because the request ended first.
            self._directory.unpin(one_by_one.pinned)
        if one_by_one.done:
            _note(observed, began, one_by_one.done)
        return found

    async def _take_up(self, context: Context) -> None:
        """Continues the request's trace span, and waits until this replica shows the change that it asks for."""
        observed = context.observed
        if self._tracing is not None and observed.carried is not None:
            observed.span = self._tracing.taken_up(observed.carried)
        if context.min_seq > self._directory.position.seq:
            await self._directory.position.reached(context)

    async def _compute_one(
        self, versions: Held, ref: str, number: int, inputs: Split, shared: "_OneByOne"
    ) -> Result | Missed:
        """Answers one question on its own, and unpins its versions."""
        context = shared.context
        shared.pinned.remove(versions)
        try:
            try:
                await self._residents.ready([versions], context)
                question = self._expand_one(versions, number, inputs, shared.asked, shared.tokens, shared.size)
                submitted = self._submit([question], context, requests=0)
            except BaseException:
                self._directory.unpin([versions])
                raise
            async with asyncio.timeout(context.remaining):
                logits = await self._logits(submitted)
        except TimeoutError:
            return Missed(ref, number, DeadlineExceeded("the answer was not there when the request's time was over"))
        except OneBertError as error:
            return Missed(ref, number, error)
        shared.done.extend(one.request for one in submitted)
        return self._result(question, logits[question.host])

    def _result(self, question: "_Expanded", logits: Iterator[Logits]) -> Result:
        facts = question.version.facts
        keeping = self._directory.keepings.get(facts.task) if self._sampled else None
        return Result(facts, question.input, _computed(question, logits), keeping)

    def _submit(self, questions: Sequence["_Expanded"], context: Context, requests: int) -> list["_Submitted"]:
        """Submits and counts questions, all of them or none, with one request to the engine for each host.

        The engine wakes at the end of this turn of the event loop, so that its requests begin in one batch. Await
        `_logits` next.
        """
        of: dict[Host, list[_Expanded]] = {} if questions else {next(iter(self._engine.hosts.values())): []}
        for question in questions:
            of.setdefault(question.host, []).append(question)
        parts = [(host, [item for one in own for item in one.items]) for host, own in of.items()]
        submitted = self._engine.submit_all(parts, context, wake=False)
        self.rates.count(context.principal, requests, sum(sum(request.lengths) for request in submitted))
        loop = asyncio.get_running_loop()
        if self._waking_from is not loop:
            self._waking_from = loop
            loop.call_soon(self._wake)
        return [_Submitted(request, of[request.host]) for request in submitted]

    def _follow(self, request: Request, questions: Sequence["_Expanded"]) -> None:
        """Hands the questions of a request that have shadows to the listeners, which give back the shadows' pins."""
        end = 0
        for question in questions:
            start, end = end, end + len(question.items)
            version, *shadows = question.held
            if not shadows:
                continue
            inputs = question.input, question.inputs, question.asked
            answer = request, slice(start, end), question.held.payer
            computed = ComputedQuestion(version, shadows, question.planned, *inputs, *answer)
            listeners = self._computed if question.items else ()
            for listener in listeners:
                listener(computed)
            if not listeners:
                self._directory.unpin([(shadow,) for shadow in shadows])

    def _wake(self) -> None:
        self._waking_from = None
        self._engine.wake()

    async def _logits(self, submitted: Sequence["_Submitted"]) -> dict[Host, Iterator[Logits]]:
        """Awaits the answers of requests; a cancellation makes the engine drop the items that it has not begun.

        Shadows begin once the caller's answer is written, as far as it does not wait again.
        """
        # The versions are unpinned when the engine's future ends, not when this coroutine does: a request may end
        # early, while a batch still reads the rows of its versions.
        if self._arrivals is None or not self._arrivals.current:
            self._arrivals = Arrivals()
        unpin = self._directory.unpin
        answering = [(one.request, partial(unpin, [(each.version,) for each in one.questions])) for one in submitted]
        try:
            found = await self._arrivals.results(answering)
        finally:
            for one in submitted:
                if any(len(each.held) > 1 for each in one.questions):
                    asyncio.get_running_loop().call_soon(self._follow, one.request, one.questions)
        return {one.request.host: iter(logits) for one, logits in zip(submitted, found, strict=True)}

    def _pin(self, wanted: Wanted, context: Context, inputs: Split) -> list[Held]:
        context.principal.require_scope(Action.CLASSIFY)
        who = context.principal, context.key_of
        if wanted.refs is not None:
            return self._directory.pin(wanted.refs, *who)
        blank = {base for base, (pieces, *_) in inputs.items() if not any(pieces.lengths)}
        return self._directory.pin_live(
            lambda facts: facts.base not in blank and refusal(facts, wanted.asked, wanted.pair) is None,
            MAX_FANOUT,
            *who,
        )

    def _expand(self, held: Sequence[Held], inputs: Split, asked: Asked) -> list["_Expanded"]:
        tokens, size, several = CutOnce(), AnswerSize(asked), len(next(iter(inputs.values()))) > 1
        expanded = []
        for index, versions in enumerate(held):
            number = index if several else 0
            expanded.append(self._expand_one(versions, number, inputs, asked, tokens, size))
        return expanded

    def _expand_one(
        self, versions: Held, number: int, inputs: Split, asked: Asked, tokens: CutOnce, size: AnswerSize
    ) -> "_Expanded":
        version = versions[0]
        facts = version.facts
        host = self._engine.hosts[facts.base]
        pieces, tokenizer = inputs[facts.base][number], host.base.tokenizer
        if why := refusal(facts, asked, pair=len(pieces.ids) > 1):
            raise InvalidInput(why)
        planned = expand(pieces, version, tokenizer, asked)
        for shadow in versions[1:]:
            self._check_end(shadow, inputs[shadow.facts.base][number], asked)
        tokenizer = tokenizer.reading(facts.pooling)
        items = [Item(tokens.cut(tokenizer, pieces, one.kept), one.slot.number) for one in planned]
        size.add(facts, [len(item.tokens) for item in items])
        return _Expanded(version, number, planned, items, host, versions, inputs, asked)

    def _check_end(self, shadow: Version, pieces: Pieces, asked: Asked) -> None:
        """Raises WholeTextNeeded if a shadow reads what was split off: once its caller is answered, nobody has it."""
        try:
            expand(pieces, shadow, self._engine.hosts[shadow.facts.base].base.tokenizer, asked.of_shadows)
        except WholeTextNeeded:
            raise
        except OneBertError:
            # The shadow will be left out; the request is answered, whatever else is wrong with its shadow's question.
            return


def _check_headers(context: Context) -> None:
    """Raises HeaderNeeded with the names of all headers that a version was chosen without."""
    if context.lacking:
        raise HeaderNeeded(" ".join(dict.fromkeys(context.lacking)))


class _Expanded(NamedTuple):
    """A question with the version that answers it, its planned sequences, and their items for the engine.

    `held` has that version and its shadows.
    """

    version: Version
    input: int
    planned: Sequence[Planned]
    items: Sequence[Item]
    host: Host
    held: Held
    inputs: Split
    asked: Asked


class _Submitted(NamedTuple):
    """A request of the engine with its questions."""

    request: Request
    questions: Sequence[_Expanded]


class _OneByOne(NamedTuple):
    """The shared state of questions that end one by one: `done` are computed, `pinned` have not begun."""

    context: Context
    asked: Asked
    tokens: CutOnce
    size: AnswerSize
    done: list[Request]
    pinned: list[Held]


def _note(observed: Observed, began: float, requests: Sequence[Request]) -> None:
    """Notes the phases of requests that are computed; `began` is the time when they came."""
    first = min(request.began for request in requests)
    observed.phase(QUEUE, began, first)
    # By their spans' ids: OpenTelemetry's contexts have no hash.
    batches = list({batch.span_id: batch for request in requests for batch in request.batches}.values())
    observed.phase(FORWARD, first, max(request.ended for request in requests), batches)


def _computed(question: _Expanded, logits: Iterator[Logits]) -> list[Computed]:
    return [Computed(planned.kept, planned.role, next(logits)) for planned in question.planned]


async def _at_once(missed: Missed) -> Missed:
    return missed
