"""The engine process's end of one front end: computes its questions and sends it the facts of each version once."""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import msgspec

from onebert_server.access.keys import KeyRing
from onebert_server.answering.backend import Backend
from onebert_server.front_ends import questions, wire
from onebert_server.front_ends.channel import Channel
from onebert_server.metrics import Metrics
from onebert_server.telemetry.access_log import Lines
from onebert_server.versions.facts import Facts

logger = logging.getLogger("onebert.front_desk")

# Approximate bytes of labels that a front end caches; it evicts the least recently used versions.
MAX_KNOWN_BYTES = 2**25
# Python's overhead in bytes per label, and per version.
_LABEL_BYTES, _FACTS_BYTES = 64, 512


class FrontDesk:
    """Answers one front end and counts its requests; the counts outlive the front end.

    `listens` and `lost` get this desk when the front end accepts connections, and when it disconnects.
    """

    def __init__(
        self,
        backend: Backend,
        metrics: Metrics,
        keys: KeyRing,
        listens: Callable[["FrontDesk"], None],
        lost: Callable[["FrontDesk"], None],
        access_log: Lines | None = None,
    ) -> None:
        self.channel = Channel(wire.FromFrontEnd, self._received, self._gone)
        self._backend = backend
        self._metrics = metrics
        self._keys = keys
        self._listens = listens
        self._lost = lost
        self._access_log = access_log
        self._in_progress = 0
        self._known = _Known()
        self._computing: dict[int, asyncio.Task[None]] = {}

    def _received(self, frame: Any) -> None:
        match frame:
            case wire.Compute(number):
                task = asyncio.get_running_loop().create_task(self._compute(frame))
                self._computing[number] = task
                task.add_done_callback(lambda _: self._computing.pop(number))
            case wire.Cancel(number):
                # Unknown number: the reply and this message have crossed.
                if computing := self._computing.get(number):
                    computing.cancel()
            case wire.RequestEnded(ended):
                self._metrics.observe_request(ended)
            case wire.Line(line) if self._access_log is not None:
                self._access_log.write(line)
            case wire.InProgress(count):
                self._set_in_progress(count)
            case wire.Connected():
                self.channel.send(wire.keys(self._keys))
            case wire.Accepting():
                self._listens(self)

    def _gone(self) -> None:
        for computing in self._computing.values():
            computing.cancel()
        self._set_in_progress(0)
        self._lost(self)

    def _set_in_progress(self, count: int) -> None:
        self._metrics.add_in_progress(count - self._in_progress)
        self._in_progress = count

    async def _compute(self, asked: wire.Compute) -> None:
        reply = await questions.answered(self._backend, asked)
        if isinstance(reply, wire.Logits):
            learned, forgotten = self._known.tell({facts.ref: facts for facts in reply.learned})
            reply = msgspec.structs.replace(reply, learned=learned, forgotten=forgotten)
        self.channel.send(reply)


class _Known:
    """The versions that a front end caches, bounded in bytes; mirrors the front end's cache exactly."""

    def __init__(self) -> None:
        self._bytes: OrderedDict[str, int] = OrderedDict()
        self._total = 0

    def tell(self, needed: dict[str, Facts]) -> tuple[list[Facts], list[str]]:
        learned = [facts for ref, facts in needed.items() if ref not in self._bytes]
        for facts in learned:
            self._bytes[facts.ref] = _FACTS_BYTES + facts.label_bytes + _LABEL_BYTES * len(facts.labels)
            self._total += self._bytes[facts.ref]
        for ref in needed:
            self._bytes.move_to_end(ref)
        forgotten = []
        while self._total > MAX_KNOWN_BYTES and (oldest := next(iter(self._bytes))) not in needed:
            self._total -= self._bytes.pop(oldest)
            forgotten.append(oldest)
        return learned, forgotten
