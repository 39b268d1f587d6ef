"""The transport of a front end on the engine's machine: one connection for all questions, one for each request."""

import asyncio
import itertools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from onebert_server.access.keys import KeyRing
from onebert_server.remote import wire
from onebert_server.remote.unix import frames
from onebert_server.remote.unix.channel import Channel
from onebert_server.versions.facts import Facts
from onebert_store.errors import ShuttingDown, Unhealthy

logger = logging.getLogger("onebert.front_end")

_SILENT = "the process with the engine does not answer"


class UnixTransport:
    """A transport to the socket at `path`; see Transport.

    It caches the immutable facts of versions (labels and task type) until the engine process evicts them.

    Attributes:
        told: gets the messages about the front end itself; set before `listen`.
        lost: runs when the engine process is gone; set before `listen`.
    """

    told: Callable[[frames.Drain | frames.Stop], None]
    lost: Callable[[], None]
    _channel: Channel

    def __init__(self, path: str) -> None:
        self._path = path
        self._numbers = itertools.count()
        self._waiting: dict[int, asyncio.Future[wire.Logits | wire.Refused]] = {}
        self._known: dict[str, Facts] = {}

    @property
    def full(self) -> bool:
        return self._channel.full

    def send(self, frame: msgspec.Struct) -> None:
        self._channel.send(frame)

    def close(self) -> None:
        self._channel.close()

    async def listen(self, keys: KeyRing) -> None:
        came = asyncio.Event()

        def received(frame: Any) -> None:
            match frame:
                case wire.Keys():
                    wire.exchange(keys, frame)
                    came.set()
                case frames.Reply():
                    self._answered(frame)
                case _:
                    self.told(frame)

        self._channel = await self._connect(received, self.lost)
        self.send(frames.Connected())
        await came.wait()

    async def ask(self, question: wire.Compute) -> wire.Logits | wire.Refused:
        number = next(self._numbers)
        future: asyncio.Future[wire.Logits | wire.Refused] = asyncio.get_running_loop().create_future()
        self._waiting[number] = future
        self.send(frames.Ask(number, question))
        try:
            return await future
        except asyncio.CancelledError:
            self.send(frames.Cancel(number))
            raise
        finally:
            del self._waiting[number]

    async def relay(self, request: wire.Request, patience: float) -> wire.Response:
        """Keep-alives reset the patience, so that only a process that hangs loses it, and not a slow answer."""
        replies = asyncio.Queue[Any]()
        try:
            channel = await self._connect(replies.put_nowait, partial(replies.put_nowait, None))
        except OSError as error:
            logger.error("the process with the engine cannot be reached: %s", error.strerror)
            raise ShuttingDown(_SILENT) from None
        channel.send(request)
        try:
            while True:
                async with asyncio.timeout(patience):
                    reply = await replies.get()
                if reply is None:
                    raise ShuttingDown(_SILENT)
                if isinstance(reply, wire.Response):
                    return reply
        except TimeoutError:
            logger.error("the process with the engine says nothing for %.0f seconds", patience)
            raise Unhealthy(_SILENT) from None
        finally:
            channel.close()

    async def _connect(self, received: Callable[[Any], None], lost: Callable[[], None]) -> Channel:
        loop = asyncio.get_running_loop()
        _, channel = await loop.create_unix_connection(lambda: Channel(frames.FromEngine, received, lost), self._path)
        return channel

    def _answered(self, frame: frames.Reply) -> None:
        """Delivers a reply, with all its facts, to its waiting question, if that has not been cancelled."""
        reply = frame.reply
        if isinstance(reply, wire.Logits):
            # Also for a cancelled question: the engine process now counts these versions as known here.
            self._known |= {facts.ref: facts for facts in reply.facts}
            versions = {one.version for one in reply.answers if one.missed is None}
            reply = msgspec.structs.replace(reply, facts=[self._known[ref] for ref in versions])
            for ref in frame.forgotten:
                del self._known[ref]
        future = self._waiting.get(frame.number)
        if future is not None and not future.done():
            future.set_result(reply)
