"""A front end's transport on the engine's machine: a connection for all messages, one for each forwarded request."""

import asyncio
import itertools
import os
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from starlette.types import Receive, Scope, Send

from onebert_server.access.keys import KeyRing
from onebert_server.answering.gateway import ShadowQuestions
from onebert_server.observed import FinishedRequest
from onebert_server.remote import wire
from onebert_server.remote.unix import frames
from onebert_server.remote.unix.channel import Channel, connected
from onebert_server.remote.unix.http import forward
from onebert_server.versions.facts import Facts, Identity


class UnixTransport:
    """A transport to the sockets with these names; see Transport.

    It caches the facts of versions by their identity, until the engine process evicts them.

    Attributes:
        ended: see Transport.
        told: gets the messages about the front end itself; set before `listen`.
        lost: runs when the engine process is gone; set before `listen`.
    """

    ended: Callable[[wire.EndedMessage], None]
    told: Callable[[frames.Drain | frames.Stop], None]
    lost: Callable[[], None]
    _channel: Channel

    def __init__(self, engine: str, control: str) -> None:
        self._engine, self._control = engine, control
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[wire.Versions | wire.Refused]] = {}
        self._known: dict[Identity, Facts] = {}
        self._heard = time.monotonic()

    @property
    def full(self) -> bool:
        return self._channel.full

    def send(self, frame: msgspec.Struct, at_once: bool = True) -> None:
        self._channel.send(frame, at_once)

    def close(self) -> None:
        self._channel.close()

    async def listen(self, keys: KeyRing) -> None:
        came = asyncio.Event()

        def received(frame: Any) -> None:
            self._heard = time.monotonic()
            match frame:
                case wire.EndedMessage():
                    self.ended(frame)
                case frames.Alive():
                    self.send(frame)
                case wire.RegistryKeys():
                    wire.exchange(keys, frame)
                    came.set()
                case frames.AskReply():
                    self._resolved(frame)
                case _:
                    self.told(frame)

        _, self._channel = await asyncio.get_running_loop().create_unix_connection(
            lambda: Channel(frames.FromEngine, received, self.lost), sock=await connected(self._engine)
        )
        self.send(frames.Connected(os.getpid()))
        await came.wait()

    def keep(self, samples: wire.Samples) -> None:
        self.send(samples)

    async def ask(self, question: wire.Resolve) -> wire.Versions | wire.Refused:
        number = next(self._numbers)
        future: asyncio.Future[wire.Versions | wire.Refused] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self.send(frames.Ask(number, question))
        try:
            return await future
        except asyncio.CancelledError:
            self.send(frames.Cancel(number))
            raise
        finally:
            del self._waiting[number]

    def submit(self, block: wire.BlockMessage) -> None:
        self.send(block)

    def withdraw(self, numbers: Sequence[int]) -> None:
        self.send(wire.Withdraw([*numbers]))

    def shadow(self, questions: ShadowQuestions) -> None:
        self.send(wire.Shadowed(questions))

    async def forward(self, scope: Scope, receive: Receive, send: Send, deadline: float) -> None:
        # So that a scrape has what was answered before.
        self._channel.flush()
        await forward(self._control, scope, receive, send, deadline, lambda: self._heard)

    def _resolved(self, frame: frames.AskReply) -> None:
        """Delivers a reply, with all its facts, to its waiting question, if that has not been cancelled."""
        reply = frame.reply
        if isinstance(reply, wire.Versions):
            # Also for a cancelled question: the engine process now counts these versions as known here.
            self._known |= {facts.identity: facts for facts in reply.facts}
            versions = dict.fromkeys(row.version for row in reply.found)
            reply = msgspec.structs.replace(reply, facts=[*map(self._known.__getitem__, versions)])
            for version in frame.forgotten:
                del self._known[version]
        future = self._waiting.get(frame.number)
        if future is not None and not future.done():
            future.set_result(reply)


# Seconds by which changes of the in-progress count are delayed.
TELL_IN_PROGRESS = 0.1


class RemoteCounts:
    """Sends what a turn has finished, and the in-progress count every `TELL_IN_PROGRESS` seconds at most."""

    def __init__(self, transport: UnixTransport) -> None:
        self._transport = transport
        self._in_progress = 0
        self._timer: asyncio.TimerHandle | None = None
        self._lines: list[bytes] = []

    def request_began(self) -> None:
        self._in_progress += 1
        self._tell_later()

    def write(self, lines: Sequence[bytes]) -> None:
        """Keeps lines of the access log, which go with their requests."""
        self._lines += lines

    def requests_ended(self, ended: Sequence[FinishedRequest]) -> None:
        self._in_progress -= len(ended)
        self._tell_later()
        lines, self._lines = self._lines, []
        # While others are in progress, their next block or the count of these takes it along.
        self._transport.send(frames.CountedRequests([*ended], lines), at_once=not self._in_progress)

    def _tell_later(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TELL_IN_PROGRESS, self._tell)

    def _tell(self) -> None:
        self._timer = None
        self._transport.send(frames.InProgress(self._in_progress))
