"""The engine's process to one front end: what its questions mean now, and what the engine makes of them."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from typing import Any

from onebert_encoder.tokens import Tokens
from onebert_server import wire
from onebert_server.admission import Admission
from onebert_server.metrics import IN_PROGRESS, Sample
from onebert_server.middleware import log_failure
from onebert_server.versions import Logits, Record, Wanted
from onebert_store.errors import OneBertError

logger = logging.getLogger("onebert.front_desk")

# Seconds that a scrape waits for a front end; then it has to do with what the front end said before.
COUNT_TIMEOUT = 1.0


class FrontDesk:
    """Answers one front end.

    Args:
        admission: the way to the engine.
        listens, lost: called with this desk when the front end accepts connections, and when it is gone.
    """

    def __init__(
        self, admission: Admission, listens: Callable[["FrontDesk"], None], lost: Callable[["FrontDesk"], None]
    ) -> None:
        self.channel = wire.Channel(wire.FromFrontEnd, self._received, self._gone)
        self._admission = admission
        self._listens = listens
        self._lost = lost
        self._counted: list[Sample] = []
        self._counts: deque[asyncio.Future[None]] = deque()
        self._computing: set[Future[list[Logits]]] = set()

    async def counted(self) -> list[Sample]:
        """What the front end has counted."""
        count = asyncio.get_running_loop().create_future()
        self._counts.append(count)
        self.channel.send(wire.Count())
        await asyncio.wait([count], timeout=COUNT_TIMEOUT)
        return self._counted

    def left(self) -> list[Sample]:
        """What a front end that is gone had counted when it was last asked."""
        return [sample for sample in self._counted if sample[1] != IN_PROGRESS]

    def _received(self, frame: Any) -> None:
        match frame:
            case wire.Ask():
                self._answer(frame)
            case wire.Counted(samples):
                self._counted = samples
                self._counts.popleft().set_result(None)
            case wire.Listening():
                self._listens(self)

    def _gone(self) -> None:
        # There is nobody to answer. A copy, since each that is taken back takes itself out.
        for future in tuple(self._computing):
            future.cancel()
        for count in self._counts:
            count.set_result(None)
        self._lost(self)

    def _answer(self, ask: wire.Ask) -> None:
        try:
            reply: wire.Answer | wire.Mean | wire.Refusal | None = self._admit(ask)
        except Exception as error:
            reply = _refusal(ask.number, error)
        if reply is not None:
            self.channel.send(reply)

    def _admit(self, ask: wire.Ask) -> wire.Answer | wire.Mean | None:
        """The reply, or None where the engine's thread will send it."""
        pinned = self._admission.pin(Wanted(None if ask.every else ask.refs, ask.pair))
        refs = [record.task for record in pinned.records] if ask.every else ask.refs
        if ask.refs != refs or ask.versions != [record.version for record in pinned.records]:
            pinned.release()
            said = dict(zip(ask.refs, ask.versions, strict=False))
            now = dict(zip(refs, pinned.records, strict=True))
            return wire.Mean(ask.number, refs, {r: _told(of) for r, of in now.items() if said.get(r) != of.version})
        if not ask.order:
            pinned.release()
            return wire.Answer(ask.number, [])
        tokens = [Tokens(one.input_ids, one.type_ids) for one in ask.sequences]
        future = pinned.submit([tokens[place] for place in ask.order])
        self._computing.add(future)
        future.add_done_callback(partial(self._computed, ask.number))
        return None

    def _computed(self, number: int, future: Future[list[Logits]]) -> None:
        self._computing.discard(future)
        if future.cancelled():
            return
        error = future.exception()
        if error is None:
            self.channel.send(wire.Answer(number, [row.tobytes() for row in future.result()]))
        else:
            self.channel.send(_refusal(number, error))


def _told(record: Record) -> wire.Version:
    manifest = record.manifest.model_dump_json(exclude={"golden", "training"}).encode()
    return wire.Version(record.task, record.version, record.digest, manifest)


def _refusal(number: int, error: BaseException) -> wire.Refusal:
    if not isinstance(error, OneBertError):
        log_failure(logger, "a question of a front end", error)
        error = OneBertError("the server failed to answer; its log says where")
    return wire.Refusal(number, error.status, error.code, error.title, error.detail, error.retry_after)
