"""A backend in another process, as front ends see it: one message with a question, one with its reply."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from onebert_encoder.text.tokens import Pieces
from onebert_server.access.context import Context
from onebert_server.access.principal import Principal
from onebert_server.answering.backend import Missed, Result, Wanted
from onebert_server.front_ends import questions, wire
from onebert_store.errors import OneBertError

# Seconds for which a front end refuses by itself after the engine's process would have refused whatever came: much less
# than what waits takes, so that the engine never runs dry meanwhile. And how many principals it may remember that of.
FULL_SECONDS = 0.05
MAX_FULL = 1024


class AskingBackend(ABC):
    """Refuses for a moment by itself what the other process has just said that it would refuse; see Backend."""

    def __init__(self) -> None:
        # By the principal and not by its name alone: keys of one name may have different quotas.
        self._full: dict[Principal, tuple[float, wire.Refused]] = {}

    def check(self, context: Context) -> None:
        """See Backend; the other process alone knows what waits, and its last word counts for a moment."""
        until, refused = self._full.get(context.principal, (0.0, None))
        if refused is not None and time.monotonic() < until:
            raise questions.error_of(refused.why)

    async def compute(self, context: Context, wanted: Wanted, inputs: Sequence[Pieces]) -> list[Result]:
        """See Backend."""
        found = await self._ask(context, wanted, inputs, each=False)
        # An error would have been the whole reply.
        return [one for one in found if isinstance(one, Result)]

    async def compute_each(self, context: Context, wanted: Wanted, inputs: Sequence[Pieces]) -> list[Result | Missed]:
        """See Backend."""
        return await self._ask(context, wanted, inputs, each=True)

    @abstractmethod
    async def _ask(
        self, context: Context, wanted: Wanted, inputs: Sequence[Pieces], each: bool
    ) -> list[Result | Missed]:
        """Asks the other process; `each` as in `wire.Compute`."""

    def _refusal(self, context: Context, refused: wire.Refused) -> OneBertError:
        """The error of a reply that refuses; remembered if any question of this principal would have met it."""
        if refused.whatever:
            now = time.monotonic()
            if len(self._full) >= MAX_FULL:
                self._full = {one: held for one, held in self._full.items() if now < held[0]}
            self._full[context.principal] = now + FULL_SECONDS, refused
        return questions.error_of(refused.why)
