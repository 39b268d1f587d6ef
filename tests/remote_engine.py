"""An engine on the other side of a socket, as a front end asks it; both sides on one event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

from onebert_server.access.keys import KeyRing
from onebert_server.answering.admission import Admission
from onebert_server.front_ends import wire
from onebert_server.front_ends.channel import Channel
from onebert_server.front_ends.desk import FrontDesk
from onebert_server.front_ends.remote import RemoteBackend, RemoteCounts
from onebert_server.metrics import Metrics


class Remote(NamedTuple):
    """A front end's side, and the desk on the engine's."""

    backend: RemoteBackend
    counts: RemoteCounts
    desk: FrontDesk


@asynccontextmanager
async def remote_engine(admission: Admission, keys: KeyRing, path: str) -> AsyncIterator[Remote]:
    """Both sides of a socket at a path; leaving ends when the desk has seen that the front end is gone."""
    loop, lost = asyncio.get_running_loop(), asyncio.Event()
    desk = FrontDesk(admission, Metrics(), keys, lambda _: None, lambda _: lost.set())
    backend, counts = RemoteBackend(), RemoteCounts()
    async with await loop.create_unix_server(lambda: desk.channel, path):
        transport, channel = await loop.create_unix_connection(
            lambda: Channel(wire.FromEngine, backend.received, lambda: None), path
        )
        backend.channel = counts.channel = channel
        try:
            yield Remote(backend, counts, desk)
        finally:
            transport.close()
            await lost.wait()
