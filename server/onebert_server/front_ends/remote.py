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
from onebert_server.front_ends.channel import Channel
from onebert_server.front_ends.full import Full
from onebert_server.telemetry.observed import Ended, Observed
from onebert_server.versions.facts import Facts
from onebert_store.errors import QueueFull

# Seconds until a change of the number of requests in progress is told.
TELL_IN_PROGRESS = 0.1


class RemoteBackend:
    """A backend behind a channel; `received` takes the replies."""

    def __init__(self) -> None:
        self.channel: Channel  # before the first request there is one
        self._numbers = itertools.count()
        self._waiting: dict[int, tuple[asyncio.Future[list[Result | Missed]], Observed]] = {}
        self._full = Full()
        self._known: dict[str, Facts] = {}

    def check(self, context: Context) -> None:
        """See Backend; what waits is known in the engine's process alone, whose last word counts for a moment.

        A process with the engine that hangs reads nothing; questions that wait for that process are bounded here.
        """
        if self.channel.full:
            raise QueueFull("as much waits for the process with the engine as a front end holds; try again soon")
        if not context.counted:
            self._full.check(context)

    async def compute(self, context: Context, wanted: Wanted, inputs: Sequence[Pieces]) -> list[Result]:
        """See Backend."""
        return questions.only_results(await self._ask(context, wanted, inputs, each=False))

    async def compute_each(self, context: Context, wanted: Wanted, inputs: Sequence[Pieces]) -> list[Result | Missed]:
        """See Backend."""
        return await self._ask(context, wanted, inputs, each=True)

    async def _ask(
        self, context: Context, wanted: Wanted, inputs: Sequence[Pieces], each: bool
    ) -> list[Result | Missed]:
        self.check(context)
        number = next(self._numbers)
        future: asyncio.Future[list[Result | Missed]] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future, context.observed
        self.channel.send(questions.question(number, context, wanted, inputs, each))
        try:
            return await future
        except _Refused as error:
            self._full.note(context, error.refused)
            raise questions.error_of(error.refused) from None
        except asyncio.CancelledError:
            self.channel.send(wire.Cancel(number))
            raise
        finally:
            del self._waiting[number]

    def received(self, reply: wire.Logits | wire.Refused) -> None:
        """Hands a reply to who waits for it, if still somebody does."""
        future, observed = self._waiting.get(reply.number, (None, None))
        if isinstance(reply, wire.Logits):
            # Also where nobody waits for this reply any more: the engine's process now takes these versions for known.
            self._known |= {facts.ref: facts for facts in reply.learned}
            results = questions.results(reply, self._known)
            for ref in reply.forgotten:
                del self._known[ref]
            if future is not None and observed is not None and not future.done():
                observed.add(reply.seconds)
                future.set_result(results)
        elif future is not None and not future.done():
            future.set_exception(_Refused(reply))


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


class _Refused(Exception):
    """A reply that refuses."""

    def __init__(self, refused: wire.Refused) -> None:
        super().__init__()
        self.refused = refused
