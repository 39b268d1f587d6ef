"""The engine as a front end's backend: one message per question, one per reply.

The process with the engine resolves references, truncates and computes, and names the versions that answered.
"""

import time

from onebert_server.access.context import Context
from onebert_server.access.principal import Principal
from onebert_server.answering.backend import Missed, Result, Wanted
from onebert_server.answering.tokenizing import Split
from onebert_server.remote import questions, wire
from onebert_server.remote.transport import Transport
from onebert_store.errors import HeaderNeeded, OneBertError, QueueFull

# Seconds for which a front end repeats a refusal by itself. Far shorter than the queue needs to drain, so that the
# engine never idles. MAX_FULL bounds the principals with a stored refusal.
FULL_SECONDS = 0.05
MAX_FULL = 1024
# Names of headers that are sent with each question, the latest ones; a question that lacks others is asked again with
# all of its own. A third time is for an alias that moved in between.
MAX_HEADERS = 64
MAX_TRIES = 3


class RemoteBackend:
    """A backend behind a transport.

    It repeats the other process's refusal of a principal for `FULL_SECONDS` without asking again. It sends the headers
    that aliases choose by, whose names it learns from the first question that lacked one.
    """

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        # Keyed by principal, since keys with one name may have different quotas.
        self._full: dict[Principal, tuple[float, wire.Refused]] = {}
        self._headers: tuple[str, ...] = ()

    def check(self, context: Context) -> None:
        """Raises QueueFull while the transport is full, and the stored refusal while it is fresh."""
        if self._transport.full:
            raise QueueFull("as much waits for the process with the engine as a front end holds; try again soon")
        if context.counted:
            return
        until, refused = self._full.get(context.principal, (0.0, None))
        if refused is not None and time.monotonic() < until:
            raise questions.error_of(refused.why)

    async def compute(self, context: Context, wanted: Wanted, inputs: Split) -> list[Result]:
        found = await self._ask(context, wanted, inputs, each=False)
        # Without `each` an error is the whole reply, so there is no Missed here.
        return [one for one in found if isinstance(one, Result)]

    async def compute_each(self, context: Context, wanted: Wanted, inputs: Split) -> list[Result | Missed]:
        return await self._ask(context, wanted, inputs, each=True)

    async def _ask(self, context: Context, wanted: Wanted, inputs: Split, each: bool) -> list[Result | Missed]:
        headers, tries = self._headers, MAX_TRIES
        while True:
            self.check(context)
            reply = await self._transport.ask(questions.question(context, wanted, inputs, each, headers))
            if isinstance(reply, wire.Logits):
                context.observed.add(reply.seconds)
                return questions.results(reply)
            tries -= 1
            if reply.why.code != HeaderNeeded.code or not tries:
                raise self._refusal(context, reply)
            headers = tuple(dict.fromkeys((*reply.why.detail.split(), *headers)))
            self._headers = headers[:MAX_HEADERS]

    def _refusal(self, context: Context, refused: wire.Refused) -> OneBertError:
        """Returns the error of a refusal; stores it if every question of this principal would be refused."""
        if refused.whatever:
            now = time.monotonic()
            if len(self._full) >= MAX_FULL:
                self._full = {one: held for one, held in self._full.items() if now < held[0]}
            self._full[context.principal] = now + FULL_SECONDS, refused
        return questions.error_of(refused.why)
