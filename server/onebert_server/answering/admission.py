"""Admission in the engine's process: resolves references, counts quotas, and submits the blocks of edges."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Sequence
from contextlib import suppress

import numpy as np

from onebert_server.access.context import Context
from onebert_server.access.principal import Principal
from onebert_server.answering.gateway import Resolved, ShadowQuestions, Wanted
from onebert_server.answering.resolver import Resolver
from onebert_server.answering.tokenizing import Splitter
from onebert_server.engine.block import ENDED, Block, Ended, questions
from onebert_server.engine.engine import Engine
from onebert_server.engine.host import Host
from onebert_server.fairness.rates import Rates
from onebert_server.logs import log_failure
from onebert_server.versions.residency.residents import Residents
from onebert_server.versions.version import Held
from onebert_store.errors import OneBertError, OverQuota, OverShare, QueueFull, RowGone, TooLarge

logger = logging.getLogger("onebert.admission")

Followed = Callable[[Held, ShadowQuestions], None]
"""Gets questions that were computed, with the version that did and its shadows."""

_NOT_TAKEN = QueueFull, OverShare, RowGone, TooLarge
_NO_OUTPUTS, _NO_LOGITS = np.empty(0, np.int32), np.empty(0, np.float32)


class Entry:
    """The way of one edge to the engine: quotas before a lane, and behind it the event loop of the edge."""

    answered: Callable[[Ended], None]

    def __init__(self, engine: Engine, rates: Rates) -> None:
        self._lane = engine.lane(self._arrive)
        self.rates = rates
        # Counted by the quotas, for requests under way: principal, requests, tokens; the numbers of its question.
        self._counted: dict[int, tuple[Principal, int, int, list[int]]] = {}
        self._ended: deque[Ended] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waking = False

    def submit(self, block: Block) -> None:
        """See `Gateway.submit`."""
        loop = asyncio.get_running_loop()
        if loop is not self._loop:
            self._loop, self._waking = loop, False
        numbers = block.requests["number"]
        try:
            for principal in block.principals:
                if principal.quotas.of_rates:
                    block = self._within_quotas(block)
                    break
            if len(block.requests):
                self._lane.submit(block)
        except Exception:
            for number in numbers.tolist() if self._counted else ():
                self._take_back(number)
            raise

    def withdraw(self, numbers: Sequence[int]) -> None:
        """See `Gateway.withdraw`."""
        for number in numbers if self._counted else ():
            self._counted.pop(number, None)
        self._lane.withdraw(numbers)

    def close(self) -> None:
        """Withdraws everything: the edge is gone."""
        self._lane.close()

    def _within_quotas(self, block: Block) -> Block:
        """Counts requests; ends the requests over their quota, and returns the others."""
        requests, sequences = block.requests, block.sequences
        stops = np.cumsum(requests["sequences"])
        before = np.concatenate([[0], np.cumsum(sequences["tokens"])])
        tokens = (before[stops] - before[stops - requests["sequences"]]).tolist()
        begins, refused = questions(requests).tolist(), dict[int, OneBertError]()
        refusal, numbers = None, list[int]()
        for place, (number, _, principal, _, count, *_) in enumerate(requests.tolist()):
            caller = block.principals[principal]
            if begins[place]:
                # All requests of a question are admitted or refused; later parts of the client's were admitted with it.
                refusal, numbers = self._over_quota(caller) if count else None, []
            if refusal is not None:
                refused[place] = refusal
                continue
            self.rates.count(caller, count, tokens[place])
            numbers.append(number)
            self._counted[number] = caller, count, tokens[place], numbers
        if not refused:
            return block
        places, ended = [*refused], np.zeros(len(refused), ENDED)
        ended["number"], ended["error"] = requests["number"][places], range(len(refused))
        self._arrive(Ended(ended, _NO_OUTPUTS, _NO_LOGITS, [*refused.values()]))
        counted = np.ones(len(requests), bool)
        counted[places] = False
        of_sequence = np.repeat(counted, requests["sequences"])
        of_token = np.repeat(of_sequence, sequences["tokens"])
        spans = [span for span, is_counted in zip(block.spans, counted.tolist(), strict=False) if is_counted]
        sequences = sequences[of_sequence]
        sequences["text"] = np.unique(sequences["text"], return_inverse=True)[1]
        return Block(block.principals, requests[counted], sequences, block.ids[of_token], spans)

    def _over_quota(self, caller: Principal) -> OverQuota | None:
        try:
            self.rates.require_quota(caller)
        except OverQuota as error:
            return error
        return None

    def _settle(self, ended: Ended) -> None:
        """Takes back what was counted of requests that were not taken in."""
        for number, error, *_ in ended.requests.tolist():
            if error >= 0 and isinstance(ended.errors[error], _NOT_TAKEN):
                self._take_back(number)
            else:
                self._counted.pop(number, None)

    def _take_back(self, number: int) -> None:
        """Takes back what was counted of a request, and of the others of its question: its edge asks it anew or not."""
        if number not in self._counted:
            return
        for each in self._counted[number][-1]:
            if each in self._counted:
                caller, count, tokens, _ = self._counted.pop(each)
                self.rates.count(caller, -count, -tokens)

    def _arrive(self, ended: Ended) -> None:
        """Runs on the engine's thread, or in `submit`: what arrives until the loop's next turn shares a wake-up."""
        self._ended.append(ended)
        if not self._waking and self._loop is not None:
            self._waking = True
            # The loop may be closed: then nobody waits.
            with suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._hand_over)

    def _hand_over(self) -> None:
        # First, so that what arrives from now on wakes the loop again.
        self._waking = False
        while self._ended:
            ended = self._ended.popleft()
            try:
                if self._counted:
                    self._settle(ended)
                self.answered(ended)
            except Exception as error:
                # Requests of later batches are still waited for.
                log_failure(logger, "an edge, when it took its answers,", error)


class Admission(Entry):
    """The Gateway of the engine's process: the directory resolves, the engine computes.

    `shadowed` and `sampled` are the hooks: questions with shadows are for the first, and without any of the second no
    answer is chosen. `rates` has what is left of the principals' quotas.
    """

    def __init__(
        self,
        engine: Engine,
        residents: Residents,
        shadowed: Sequence[Followed] = (),
        sampled: Collection[object] = (),
    ) -> None:
        super().__init__(engine, Rates())
        self._engine = engine
        self._resolver = Resolver(residents, sampled, shadowed)
        self._shadowed = shadowed

    @property
    def hosts(self) -> Sequence[Host]:
        """The bases in memory, as blocks number them."""
        return [*self._engine.hosts.values()]

    @property
    def splitters(self) -> dict[str, Splitter]:
        """The tokenizers of the hosts, by the digest of their bases."""
        hosts = self._engine.hosts
        return {digest: Splitter(host.base.tokenizer, host.base.spec.max_length) for digest, host in hosts.items()}

    def refuse_early(self, context: Context) -> None:
        # The first part of a request in parts was admitted; quotas do not refuse the other parts any more.
        if context.principal.quotas.of_rates and context.requests:
            self.rates.require_quota(context.principal)
        if (error := self._engine.refusal(context.principal.name)) is not None:
            raise error

    async def resolve(self, context: Context, wanted: Wanted) -> list[Resolved | OneBertError]:
        return await self._resolver.resolve(context, wanted)

    def shadow(self, questions: ShadowQuestions) -> None:
        held = self._resolver.held(questions.shadows)
        for listener in self._shadowed if len(held) > 1 else ():
            listener(held, questions)

    def entry(self, answered: Callable[[Ended], None]) -> Entry:
        """Returns the way of one more edge to the engine; `answered` gets its requests on the loop that submitted."""
        entry = Entry(self._engine, self.rates)
        entry.answered = answered
        return entry
