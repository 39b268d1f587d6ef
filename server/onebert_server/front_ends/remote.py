"""The engine as a front end sees it: one message with a question, one with its answer, and nothing decided in between.

A front end never acts on what a reference meant earlier. It sends references, and inputs that are not yet cut; the
engine's process resolves, cuts and computes, and says which versions answered. All that a front end keeps is how their
logits are read: labels and task type by version, which never change, for as long as the engine's process says.
"""

import asyncio
import itertools
from collections.abc import Sequence

from onebert_encoder.text.tokens import Pieces
from onebert_server.access.context import Context
from onebert_server.answering.backend import Missed, Result, Wanted
from onebert_server.front_ends import questions, wire
from onebert_server.front_ends.asking import AskingBackend
from onebert_server.front_ends.channel import Channel
from onebert_server.telemetry.observed import Ended, Observed
from onebert_server.versions.facts import Facts
from onebert_store.errors import QueueFull

# Seconds until a change of the number of requests in progress is told.
TELL_IN_PROGRESS = 0.1

_Reply = asyncio.Future[list[Result | Missed] | wire.Refused]


class RemoteBackend(AskingBackend):
    """A backend behind a channel; `received` takes the replies."""

    def __init__(self) -> None:
        super().__init__()
        self.channel: Channel  # before the first request there is one
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[_Reply, Observed]] = {}
        self._known: dict[str, Facts] = {}

    def check(self, context: Context) -> None:
        """See Backend; a process with the engine that hangs reads nothing: what waits for it is bounded here."""
        if self.channel.full:
            raise QueueFull("as much waits for the process with the engine as a front end holds; try again soon")
        if not context.counted:
            super().check(context)

    async def _ask(
        self, context: Context, wanted: Wanted, inputs: Sequence[Pieces], each: bool
    ) -> list[Result | Missed]:
        self.check(context)
        number = next(self._numbers)
        future: _Reply = asyncio.get_running_loop().create_future()
        self._waiting[number] = future, context.observed
        self.channel.send(questions.question(number, context, wanted, inputs, each))
        try:
            found = await future
        except asyncio.CancelledError:
            self.channel.send(wire.Cancel(number))
            raise
        finally:
            del self._waiting[number]
        if isinstance(found, wire.Refused):
            raise self._refusal(context, found)
        return found

    def received(self, reply: wire.Logits | wire.Refused) -> None:
        """Hands a reply to who waits for it, if still somebody does."""
        future, observed = self._waiting.get(reply.number, (None, Observed()))
        found: list[Result | Missed] | wire.Refused
        if isinstance(reply, wire.Refused):
            found = reply
        else:
            # Also where nobody waits for this reply any more: the engine's process now takes these versions for known.
            self._known |= {facts.ref: facts for facts in reply.learned}
            found = questions.results(reply, self._known)
            for ref in reply.forgotten:
                del self._known[ref]
            observed.add(reply.seconds)
        if future is not None and not future.done():
            future.set_result(found)


class RemoteCounts:
    """Tells the engine's process, which counts: nothing is lost with a front end that dies; see RequestCounts.

    An answered request is told at once; how many are in progress changes too often for that, and is told now and then.
    """

    def __init__(self) -> None:
        self.channel: Channel  # before the first request there is one
        self._in_progress = 0
        self._timer: asyncio.TimerHandle | None = None

    def request_began(self) -> None:
        """See RequestCounts."""
        self._in_progress += 1
        self._tell_later()

    def request_ended(self, ended: Ended) -> None:
        """See RequestCounts."""
        self._in_progress -= 1
        self._tell_later()
        self.channel.send(wire.RequestEnded(ended))

    def write(self, line: bytes) -> None:
        """See Lines: one process writes the access log."""
        self.channel.send(wire.Line(line))

    def _tell_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TELL_IN_PROGRESS, self._tell)

    def _tell(self) -> None:
        self._timer = None
        self.channel.send(wire.InProgress(self._in_progress))
