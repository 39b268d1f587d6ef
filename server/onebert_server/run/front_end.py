"""The server of a front end, the same for every transport."""

import asyncio
import socket
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import uvicorn
from fastapi import APIRouter

from onebert_server.access.keys import KeyRing
from onebert_server.answering.answers import WORKERS, Answerer
from onebert_server.answering.edge import Edge, untaken
from onebert_server.engine.memory import collect_seldom
from onebert_server.facades.routes import answering, form_of
from onebert_server.http.connection.listener import ListeningServer
from onebert_server.http.formats import formats_of
from onebert_server.http.web import api_keys, uvicorn_config, web_app
from onebert_server.remote import wire
from onebert_server.remote.forwarding import Forwarding
from onebert_server.remote.gateway import RemoteGateway, RemoteSamples
from onebert_server.remote.transport import Transport
from onebert_server.remote.wire import splitters_of
from onebert_server.settings import Settings
from onebert_server.telemetry.telemetry import RequestCounts, Telemetry


class FrontEnd(ListeningServer):
    """Tokenizes and answers questions over a transport, and forwards other requests.

    It listens once the transport has brought the keys. `routers`: the routes that it answers itself, besides questions.
    """

    def __init__(
        self,
        setup: wire.Setup,
        transport: Transport,
        settings: Settings,
        counts: RequestCounts,
        telemetry: Telemetry,
        routers: Sequence[APIRouter] = (),
    ) -> None:
        self.transport = transport
        self._samples = RemoteSamples(transport)
        telemetry.samples = self._samples.take
        self._keys = KeyRing(settings.api_keys, closed=settings.oidc is not None)
        workers = ThreadPoolExecutor(WORKERS, "onebert-worker")
        answerer = Answerer(splitters_of(setup), RemoteGateway(transport, telemetry.tracing), workers)
        self.edge = Edge(answerer, counts, telemetry=telemetry, untaken=untaken(settings.front_ends or 1))
        super().__init__(config_of(self.edge, transport, self._keys, settings, routers))

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        self._samples.loop = asyncio.get_running_loop()
        await self.transport.listen(self._keys)
        await super().startup(sockets)
        collect_seldom()


def config_of(
    edge: Edge, transport: Transport, ring: KeyRing, settings: Settings, routers: Sequence[APIRouter] = ()
) -> uvicorn.Config:
    """The configuration of a front end's server."""
    keys, routers = api_keys(ring, settings.oidc), [answering(), *routers]
    app = Forwarding(
        web_app(edge, routers, keys=keys, settings=settings, form_of=form_of),
        formats_of(routers),
        [route for router in routers[1:] for route in router.routes],
        edge=edge,
        keys=keys,
        transport=transport,
        settings=settings,
    )
    return uvicorn_config(app, settings.shutdown_timeout)
