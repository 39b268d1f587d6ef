"""An engine on the other side of a socket, as a front end asks it; both sides on one event loop."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import NamedTuple

from onebert_server.access.keys import KeyRing
from onebert_server.answering.admission import Admission
from onebert_server.http.web import WebApp
from onebert_server.remote.gateway import RemoteGateway
from onebert_server.remote.relayed import Relayed
from onebert_server.remote.unix.counts import RemoteCounts
from onebert_server.remote.unix.desk import FrontDesk, Served
from onebert_server.remote.unix.relaying import relayed_to
from onebert_server.remote.unix.transport import UnixTransport
from onebert_server.settings import Settings
from onebert_server.telemetry.metrics import Metrics


class Remote(NamedTuple):
    """A front end's side, and the desk on the engine's."""

    gateway: RemoteGateway
    counts: RemoteCounts
    transport: UnixTransport
    desk: FrontDesk


@asynccontextmanager
async def remote_engine(
    admission: Admission, keys: KeyRing, path: str, app: WebApp | None = None
) -> AsyncIterator[Remote]:
    """Both sides of a socket at a path; `app` has the control plane.

    Leaving ends when the desk has seen that the front end is gone.
    """
    gone = asyncio.Event()
    desk = FrontDesk(Served(admission, Metrics(), keys, lambda *_: None), lambda _: None, lambda _: gone.set())
    transport = UnixTransport(path, f"{path}.relay")
    transport.lost = lambda: None
    async with AsyncExitStack() as servers:
        loop = asyncio.get_running_loop()
        await servers.enter_async_context(await loop.create_unix_server(lambda: desk.channel, path))
        if app is not None:
            relayed = relayed_to(Relayed(app.control, app.form_of, Settings.model_construct()))
            await servers.enter_async_context(await asyncio.start_unix_server(relayed, f"{path}.relay"))
        await transport.listen(KeyRing({}))
        try:
            yield Remote(RemoteGateway(transport), RemoteCounts(transport), transport, desk)
        finally:
            transport.close()
            await gone.wait()
