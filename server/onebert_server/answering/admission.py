"""Where requests meet versions, in the process with the engine: resolved and pinned, then cut, then let in."""

import asyncio
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from onebert_encoder.answering.answer import TASK_TYPES
from onebert_encoder.answering.asked import Asked
from onebert_encoder.answering.scores import Logits
from onebert_encoder.text.tokens import CutOnce, Pieces, Tokenizer
from onebert_server.access.context import Context
from onebert_server.access.principal import Action, Principal
from onebert_server.answering.arrivals import Arrivals
from onebert_server.answering.backend import Result, Wanted
from onebert_server.answering.plan import Computed, Plan, Planned, Sequences
from onebert_server.answering.rates import Rates
from onebert_server.answering.sizes import AnswerSize
from onebert_server.engine.engine import Engine
from onebert_server.engine.request import Item
from onebert_server.limits import MAX_FANOUT
from onebert_server.telemetry.observed import FORWARD, QUEUE
from onebert_server.versions.facts import Facts
from onebert_server.versions.residents import Residents
from onebert_server.versions.version import Version
from onebert_store.errors import InvalidInput

if TYPE_CHECKING:
    from onebert_server.telemetry.tracing import Tracing


class Admission:
    """Resolves against the directory and computes with the engine; see Backend."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        residents: Residents,
        engine: Engine,
        plan: Plan | None = None,
        tracing: "Tracing | None" = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._residents = residents
        self._directory = residents.directory
        self._engine = engine
        self._plan = plan or Sequences()
        self._tracing = tracing
        self._rates = Rates()
        self._waking_from: asyncio.AbstractEventLoop | None = None
        self._arrivals: Arrivals[list[Logits]] | None = None

    def check(self, context: Context) -> None:
        """See Backend."""
        self._rates.check(context.principal)
        self._engine.check(context)

    async def compute(self, context: Context, wanted: Wanted, inputs: Sequence[Pieces]) -> list[Result]:
        """See Backend; the versions stay what they are until the engine is done, whatever is moved or deleted."""
        began, observed = time.monotonic(), context.observed
        if self._tracing is not None and observed.carried is not None:
            observed.span = self._tracing.taken_up(observed.carried)
        if context.min_seq > self._directory.position.seq:
            await self._directory.position.seen(context)
        versions = self._pin(wanted, context.principal)
        try:
            await self._residents.ready(versions, context)
            self._rates.check(context.principal)
            expanded = self._expand(versions, inputs, wanted.asked)
            items = [item for question in expanded for item in question.items]
            request = self._engine.submit(items, context, wake=False)
            self._rates.count(context.principal, items)
            self._wake_engine()
        except BaseException:
            self._directory.unpin(versions)
            raise
        # Unpinned when the engine's future ends, and not with this coroutine: a request may end early, while a batch
        # still reads the rows of its versions.
        request.add_done_callback(lambda _: self._directory.unpin(versions))
        # Where this coroutine is cancelled, so is the future, and the engine drops what it has not begun.
        logits = iter(await self._arriving().result(request))
        observed.phase(QUEUE, began, request.began)
        observed.phase(FORWARD, request.began, request.ended, request.batches)
        return [
            Result(
                question.version.facts,
                question.input,
                [Computed(planned.kept, planned.role, next(logits)) for planned in question.planned],
            )
            for question in expanded
        ]

    def _wake_engine(self) -> None:
        """Wakes the engine at the end of this turn of the event loop: what comes in one turn begins in one batch."""
        loop = asyncio.get_running_loop()
        if self._waking_from is not loop:
            self._waking_from = loop
            loop.call_soon(self._wake)

    def _wake(self) -> None:
        self._waking_from = None
        self._engine.wake()

    def _arriving(self) -> Arrivals[list[Logits]]:
        if self._arrivals is None or not self._arrivals.current:
            self._arrivals = Arrivals()
        return self._arrivals

    def _pin(self, wanted: Wanted, principal: Principal) -> list[Version]:
        principal.require_scope(Action.CLASSIFY)
        if wanted.refs is not None:
            return self._directory.pin(wanted.refs, principal)
        takes = lambda facts: refusal(facts, wanted.asked, wanted.pair) is None  # noqa: E731
        return self._directory.pin_live(takes, MAX_FANOUT, principal)

    def _expand(self, versions: Sequence[Version], inputs: Sequence[Pieces], asked: Asked) -> list["_Expanded"]:
        tokens, size = CutOnce(self._tokenizer), AnswerSize(asked)
        expanded = []
        for index, version in enumerate(versions):
            number = index if len(inputs) > 1 else 0
            pieces = inputs[number]
            if why := refusal(version.facts, asked, pair=len(pieces.ids) > 1):
                raise InvalidInput(why)
            planned = self._plan.expand(pieces, version, self._tokenizer, asked)
            items = [Item(tokens.of(pieces, one.kept), one.slot) for one in planned]
            size.add(version.facts, [len(item.tokens) for item in items])
            expanded.append(_Expanded(version, number, planned, items))
        return expanded


def refusal(facts: Facts, asked: Asked, pair: bool) -> str | None:
    """Why a version does not take such an input, or has nothing that is asked; None where it answers."""
    kind = TASK_TYPES[facts.task_type]
    what = f"{facts.ref} is a {facts.task_type} task and"
    if not kind.takes(pair):
        return f"{what} takes {kind.question}"
    if why := kind.refusal(asked):
        return f"{what} has {why}"
    if asked.window is not None and (asked.window.tokens or 0) > facts.max_length:
        return f"{facts.ref} takes {facts.max_length} tokens, and a window of it no more"
    return None


class _Expanded:
    """A question with the sequences that were planned for it, and what the engine is given of each."""

    def __init__(self, version: Version, number: int, planned: Sequence[Planned], items: Sequence[Item]) -> None:
        self.version = version
        self.input = number
        self.planned = planned
        self.items = items
