"""An engine on the other side of a socket, as a front end asks it; both sides on one event loop."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any, NamedTuple, cast

from starlette.types import ASGIApp
from uvicorn.server import ServerState

from onebert_server.access.keys import KeyRing
from onebert_server.answering.admission import Admission
from onebert_server.http.web import uvicorn_config
from onebert_server.remote.gateway import RemoteGateway
from onebert_server.remote.unix.desk import FrontDesk, Served
from onebert_server.remote.unix.http import forwarded
from onebert_server.remote.unix.transport import RemoteCounts, UnixTransport
from onebert_server.telemetry.metrics import Metrics


class Remote(NamedTuple):
    """A front end's side, and the desk on the engine's."""

    gateway: RemoteGateway
    counts: RemoteCounts
    transport: UnixTransport
    desk: FrontDesk


def protocols(app: ASGIApp) -> Callable[[], asyncio.Protocol]:
    """Makes the protocols of a server's connections."""
    config, state = uvicorn_config(app, shutdown_timeout=1), ServerState()
    config.load()
    return lambda: cast(Any, config.http_protocol_class)(config=config, server_state=state, app_state={})


@asynccontextmanager
async def remote_engine(
    admission: Admission, keys: KeyRing, path: str, app: ASGIApp | None = None
) -> AsyncIterator[Remote]:
    """Both sides of a socket at a path; `app` answers what is forwarded.

    Leaving ends when the desk has seen that the front end is gone.
    """
    gone = asyncio.Event()
    desk = FrontDesk(Served(admission, Metrics(), keys, lambda *_: None), lambda _: None, lambda _: gone.set())
    transport = UnixTransport(path, f"{path}.control")
    transport.lost = lambda: None
    async with AsyncExitStack() as servers:
        loop = asyncio.get_running_loop()
        await servers.enter_async_context(await loop.create_unix_server(lambda: desk.channel, path))
        if app is not None:
            make = protocols(forwarded(app))
            await servers.enter_async_context(await loop.create_unix_server(make, f"{path}.control"))
        await transport.listen(KeyRing({}))
        try:
            yield Remote(RemoteGateway(transport), RemoteCounts(transport), transport, desk)
        finally:
            transport.close()
            await gone.wait()
