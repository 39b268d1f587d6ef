"""Sends the answers that a front end keeps to the process with the engine, a moment's answers in one message."""

import asyncio
import threading
from collections.abc import Sequence

from onebert_server.observed import Kept
from onebert_server.remote import wire
from onebert_server.remote.transport import Transport

# Bytes that wait to be sent; further answers are dropped and counted.
MAX_BYTES = 2**21
# Seconds between two messages.
SEND_EVERY = 0.1


class RemoteSamples:
    """Takes the chosen answers of a front end; `loop` is the event loop that sends, set before the first answer."""

    loop: asyncio.AbstractEventLoop

    def __init__(self, transport: Transport) -> None:
        self._transport = transport
        self._lock = threading.Lock()
        self._waiting: list[Kept] = []
        self._bytes = self._dropped = 0

    def take(self, answers: Sequence[Kept]) -> None:
        size = sum(answer.size for answer in answers)
        with self._lock:
            if self._transport.full or self._bytes + size > MAX_BYTES:
                self._dropped += len(answers)
                return
            first = not self._waiting
            self._waiting += answers
            self._bytes += size
        if first:
            self.loop.call_soon_threadsafe(self.loop.call_later, SEND_EVERY, self._send)

    def _send(self) -> None:
        with self._lock:
            message = wire.Samples(self._waiting, self._dropped)
            self._waiting, self._bytes, self._dropped = [], 0, 0
        self._transport.keep(message)
