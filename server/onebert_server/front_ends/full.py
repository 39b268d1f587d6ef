"""What a front end refuses by itself: for a moment, what the engine's process has just said it would refuse."""

import time

from onebert_server.access.context import Context
from onebert_server.access.principal import Principal
from onebert_server.front_ends import questions, wire

# Seconds for which a front end refuses by itself after the engine's process would have refused whatever came: much less
# than what waits takes, so that the engine never runs dry meanwhile. And how many principals it may remember that of.
FULL_SECONDS = 0.05
MAX_FULL = 1024


class Full:
    """Whose questions would be refused at this moment, however small they were; bounded in number and in time."""

    def __init__(self) -> None:
        # By the principal and not by its name alone: keys of one name may have different quotas.
        self._until: dict[Principal, tuple[float, wire.Refused]] = {}

    def check(self, context: Context) -> None:
        """Refuses as the engine's process did a moment ago.

        Raises:
            OneBertError: the refusal.
        """
        until, refused = self._until.get(context.principal, (0.0, None))
        if refused is not None and time.monotonic() < until:
            raise questions.error_of(refused)

    def note(self, context: Context, refused: wire.Refused) -> None:
        """Remembers a refusal that any question of this principal would have met."""
        if not refused.whatever:
            return
        now = time.monotonic()
        if len(self._until) >= MAX_FULL:
            self._until = {one: held for one, held in self._until.items() if now < held[0]}
        self._until[context.principal] = now + FULL_SECONDS, refused
