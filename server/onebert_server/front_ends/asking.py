"""The base class of backends that compute in another process."""

import time
from abc import ABC, abstractmethod
from collections.abc import Sequence

from onebert_encoder.text.tokens import Pieces
from onebert_server.access.context import Context
from onebert_server.access.principal import Principal
from onebert_server.answering.backend import Missed, Result, Wanted
from onebert_server.front_ends import questions, wire
from onebert_store.errors import OneBertError

# Seconds for which a front end repeats a refusal by itself. Far shorter than the queue needs to drain, so that the
# engine never idles. MAX_FULL bounds the principals with a stored refusal.
FULL_SECONDS = 0.05
MAX_FULL = 1024


class AskingBackend(ABC):
    """Repeats the other process's refusal of a principal for `FULL_SECONDS` without asking again."""

    def __init__(self) -> None:
        # Keyed by principal, since keys with one name may have different quotas.
        self._full: dict[Principal, tuple[float, wire.Refused]] = {}

    def check(self, context: Context) -> None:
        """Raises the stored refusal while it is fresh; only the other process knows the queue."""
        until, refused = self._full.get(context.principal, (0.0, None))
        if refused is not None and time.monotonic() < until:
            raise questions.error_of(refused.why)

    async def compute(self, context: Context, wanted: Wanted, inputs: Sequence[Pieces]) -> list[Result]:
        found = await self._ask(context, wanted, inputs, each=False)
        # Without `each` an error is the whole reply, so there is no Missed here.
        return [one for one in found if isinstance(one, Result)]

    async def compute_each(self, context: Context, wanted: Wanted, inputs: Sequence[Pieces]) -> list[Result | Missed]:
        return await self._ask(context, wanted, inputs, each=True)

    @abstractmethod
    async def _ask(
        self, context: Context, wanted: Wanted, inputs: Sequence[Pieces], each: bool
    ) -> list[Result | Missed]: ...

    def _refusal(self, context: Context, refused: wire.Refused) -> OneBertError:
        """Returns the error of a refusal; stores it if every question of this principal would be refused."""
        if refused.whatever:
            now = time.monotonic()
            if len(self._full) >= MAX_FULL:
                self._full = {one: held for one, held in self._full.items() if now < held[0]}
            self._full[context.principal] = now + FULL_SECONDS, refused
        return questions.error_of(refused.why)
