"""The engine as a front end's backend: one message per question, one per reply.

The engine process resolves references, truncates and computes, and names the versions that answered. A front end caches
only the immutable facts of versions (labels and task type), until the engine process makes it evict them.
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

# Seconds by which changes of the in-progress count are delayed.
TELL_IN_PROGRESS = 0.1

_Reply = asyncio.Future[list[Result | Missed] | wire.Refused]


class RemoteBackend(AskingBackend):
    """A backend behind a channel."""

    def __init__(self) -> None:
        super().__init__()
        self.channel: Channel  # set before the first request
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[_Reply, Observed]] = {}
        self._known: dict[str, Facts] = {}

    def check(self, context: Context) -> None:
        """Also raises `QueueFull` while the channel is full: a hung engine process reads nothing."""
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
        """Delivers a reply to its waiting question, if that has not been cancelled."""
        future, observed = self._waiting.get(reply.number, (None, Observed()))
        found: list[Result | Missed] | wire.Refused
        if isinstance(reply, wire.Refused):
            found = reply
        else:
            # Also for a cancelled question: the engine process now counts these versions as known here.
            self._known |= {facts.ref: facts for facts in reply.learned}
            found = questions.results(reply, self._known)
            for ref in reply.forgotten:
                del self._known[ref]
            observed.add(reply.seconds)
        if future is not None and not future.done():
            future.set_result(found)


class RemoteCounts:
    """Sends the counts to the engine process, which keeps them when a front end dies.

    A finished request is sent at once, the in-progress count at most every `TELL_IN_PROGRESS` seconds.
    """

    def __init__(self) -> None:
        self.channel: Channel  # set before the first request
        self._in_progress = 0
        self._timer: asyncio.TimerHandle | None = None

    def request_began(self) -> None:
        self._in_progress += 1
        self._tell_later()

    def request_ended(self, ended: Ended) -> None:
        self._in_progress -= 1
        self._tell_later()
        self.channel.send(wire.RequestEnded(ended))

    def write(self, line: bytes) -> None:
        self.channel.send(wire.Line(line))

    def _tell_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TELL_IN_PROGRESS, self._tell)

    def _tell(self) -> None:
        self._timer = None
        self.channel.send(wire.InProgress(self._in_progress))
