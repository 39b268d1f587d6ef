"""Uploads in progress: how many, which slow one makes room for another, and whose is processed next."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from onebert_server.fairness.places import Places
from onebert_store.errors import QueueFull

# Uploads with bytes on the disk: their bytes still arrive, or they wait for the uploader.
MAX_UPLOADS = 64
# An upload that is older (in seconds) and slower (in bytes per second) than this may make room for another.
SLOW_SECONDS = 1.0
SLOW_RATE = 2**16


class Incoming:
    """One upload while its bytes arrive; `received` counts them."""

    def __init__(self, principal: str) -> None:
        self.principal = principal
        self.received = 0
        self._began = asyncio.get_running_loop().time()
        self._patience: asyncio.Timeout | None = None
        self._ended = self._complete = False

    async def parts(self, stream: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
        """Yields the parts of the body as they arrive; raises TimeoutError if a slow upload lost its place."""
        while not self._ended:
            try:
                async with asyncio.timeout(None) as self._patience:
                    part = await anext(stream, None)
            finally:
                self._patience = None
            if part is None:
                self._complete = True
                return
            self.received += len(part)
            yield part
        raise TimeoutError

    def end(self) -> None:
        """Ends the upload: at once if it waits for a part, else before it waits for the next."""
        self._ended = True
        if self._patience is not None:
            self._patience.reschedule(0)

    def rate(self) -> float:
        """Returns bytes per second; infinite for an upload that is complete or has just begun."""
        seconds = asyncio.get_running_loop().time() - self._began
        return float("inf") if self._complete or seconds < SLOW_SECONDS else self.received / seconds


class Receiving:
    """All uploads in progress; use it from one event loop."""

    def __init__(self) -> None:
        self._under_way: set[Incoming] = set()
        self._one = Places(1)

    @contextmanager
    def admitted(self, principal: str) -> Iterator[Incoming]:
        """Holds a place for one upload until it is stored or refused; raises QueueFull if no place can be freed.

        If all places are taken, the principal with the most places, the newcomer's included, loses its slowest upload,
        if that is slow: a client that sends nothing cannot keep its place.
        """
        if len(self._under_way) >= MAX_UPLOADS:
            self._make_room(principal)
        incoming = Incoming(principal)
        self._under_way.add(incoming)
        try:
            yield incoming
        finally:
            self._under_way.discard(incoming)

    @asynccontextmanager
    async def place(self, incoming: Incoming) -> AsyncIterator[None]:
        """Holds the only place for checking and storing a complete upload; principals get it round robin."""
        await self._one.take(incoming.principal)
        try:
            yield
        finally:
            self._one.give_back()

    def _make_room(self, newcomer: str) -> None:
        held = Counter([newcomer, *(upload.principal for upload in self._under_way)])
        most = max(held.values())
        slowest = min((upload for upload in self._under_way if held[upload.principal] == most), key=Incoming.rate)
        if slowest.rate() >= SLOW_RATE:
            raise QueueFull("as many uploads are under way as the server holds; try again soon")
        self._under_way.discard(slowest)
        slowest.end()
