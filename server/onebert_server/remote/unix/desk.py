"""The engine process's end of one front end's connection: takes its blocks, answers them, and counts its requests."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from onebert_server.access.keys import KeyRing
from onebert_server.answering.admission import Admission
from onebert_server.logs import log_failure
from onebert_server.observed import FinishedRequest, Kept
from onebert_server.remote import wire
from onebert_server.remote.edge import RemoteEdge
from onebert_server.remote.unix import frames
from onebert_server.remote.unix.channel import Channel
from onebert_server.telemetry.access_log import Lines
from onebert_server.telemetry.metrics import Metrics
from onebert_server.versions.facts import Facts, Identity

if TYPE_CHECKING:
    from onebert_server.telemetry.tracing import Tracing

logger = logging.getLogger("onebert.front_desk")

# Approximate bytes of labels that a front end caches; it evicts the least recently used versions.
MAX_KNOWN_BYTES = 2**25
# Python's overhead in bytes per label, and per version.
_LABEL_BYTES, _FACTS_BYTES = 64, 512


class Served(NamedTuple):
    """The parts of the engine process that a front end asks and reports to."""

    admission: Admission
    metrics: Metrics
    keys: KeyRing
    keep: Callable[[Sequence[Kept], int], None]
    access_log: Lines | None = None
    tracing: "Tracing | None" = None


class FrontDesk:
    """Answers one connection; the counts outlive it.

    Calls `accepting` when its front end accepts connections, and `lost` when it is gone, each with itself.

    Attributes:
        process: its front end's; None until that has connected.
        unanswered: beats since the front end's last word.
    """

    def __init__(
        self, served: Served, accepting: Callable[["FrontDesk"], None], lost: Callable[["FrontDesk"], None]
    ) -> None:
        self.channel = Channel(frames.FromFrontEnd, self._received, self._gone)
        self._served = served
        self._accepting, self._lost = accepting, lost
        self.process: int | None = None
        self.unanswered = 0
        self._edge = RemoteEdge(served.admission, self.channel.send, served.tracing)
        self._in_progress = 0
        self._known = _Known()
        self._resolving: dict[int, asyncio.Task[None]] = {}

    def beat(self) -> None:
        """Asks a connected front end for a word."""
        if self.process is not None:
            self.unanswered += 1
            self.channel.send(frames.Alive())

    def _received(self, frame: Any) -> None:
        self.unanswered = 0
        # A fault in what one request leaves, such as its samples, must not close the connection of all others.
        try:
            self._take(frame)
        except Exception as error:
            log_failure(logger, "a message of a front end", error)
            if isinstance(frame, wire.BlockMessage):
                # Nobody knows which requests it had: their front end shall not wait for them.
                self.channel.close()

    def _take(self, frame: Any) -> None:
        match frame:
            case wire.BlockMessage() | wire.Withdraw() | wire.Shadowed():
                self._edge.take(frame)
            case frames.Ask(number, question):
                task = asyncio.get_running_loop().create_task(self._reply(number, question))
                self._resolving[number] = task
                task.add_done_callback(lambda _: self._resolving.pop(number))
            case frames.Cancel(number):
                # Unknown number: the reply and this message have crossed.
                if resolving := self._resolving.get(number):
                    resolving.cancel()
            case frames.CountedRequests(requests, lines):
                self._count(requests, lines)
            case wire.Samples(kept, dropped):
                self._served.keep(kept, dropped)
            case frames.InProgress(count):
                self._set_in_progress(count)
            case frames.Connected(process):
                self.process = process
                self.channel.send(wire.keys(self._served.keys))
            case frames.Accepting():
                self._accepting(self)

    def _gone(self) -> None:
        for resolving in self._resolving.values():
            resolving.cancel()
        self._edge.close()
        self._set_in_progress(0)
        self._lost(self)

    def _count(self, requests: Sequence[FinishedRequest], lines: Sequence[bytes]) -> None:
        self._served.metrics.requests_ended(requests, began_here=False)
        if self._served.access_log is not None:
            self._served.access_log.write(lines)

    def _set_in_progress(self, count: int) -> None:
        self._served.metrics.add_in_progress(count - self._in_progress)
        self._in_progress = count

    async def _reply(self, number: int, question: wire.Resolve) -> None:
        reply, forgotten = await self._edge.reply_to(question), list[Identity]()
        if isinstance(reply, wire.Versions):
            learned, forgotten = self._known.tell({facts.identity: facts for facts in reply.facts})
            reply = msgspec.structs.replace(reply, facts=learned)
        self.channel.send(frames.AskReply(number, reply, forgotten))


class _Known:
    """The versions that a front end caches, bounded in bytes; mirrors the front end's cache exactly."""

    def __init__(self) -> None:
        self._bytes: OrderedDict[Identity, int] = OrderedDict()
        self._total = 0

    def tell(self, needed: Mapping[Identity, Facts]) -> tuple[list[Facts], list[Identity]]:
        learned = [facts for version, facts in needed.items() if version not in self._bytes]
        for facts in learned:
            size = _FACTS_BYTES + facts.label_bytes + _LABEL_BYTES * len(facts.labels)
            self._bytes[facts.identity] = size
            self._total += size
        for version in needed:
            self._bytes.move_to_end(version)
        forgotten = []
        while self._total > MAX_KNOWN_BYTES and (oldest := next(iter(self._bytes))) not in needed:
            self._total -= self._bytes.pop(oldest)
            forgotten.append(oldest)
        return learned, forgotten
