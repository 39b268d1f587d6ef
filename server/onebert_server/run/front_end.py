"""Puts a front end together, the same for every transport."""

from collections.abc import Sequence
from concurrent.futures import Executor

import uvicorn
from fastapi import APIRouter, FastAPI
from starlette.types import ASGIApp

from onebert_server.access.keys import KeyRing
from onebert_server.answering.answers import Answerer
from onebert_server.answering.edge import Edge
from onebert_server.facades.routes import answering, form_of
from onebert_server.http.web import oidc_tokens, uvicorn_config, web_app
from onebert_server.remote import questions, wire
from onebert_server.remote.backend import RemoteBackend
from onebert_server.remote.relay import Relay
from onebert_server.remote.transport import Transport
from onebert_server.settings import Settings
from onebert_server.telemetry.metrics import RequestCounts
from onebert_server.telemetry.telemetry import Telemetry


def edge_of(
    setup: wire.Setup, transport: Transport, counts: RequestCounts, telemetry: Telemetry, workers: Executor
) -> Edge:
    """The state of a front end."""
    answerer = Answerer(questions.splitters(setup), RemoteBackend(transport), workers)
    return Edge(answerer, counts, telemetry=telemetry)


def config_of(
    edge: Edge, transport: Transport, keys: KeyRing, settings: Settings, own: Sequence[APIRouter] = ()
) -> uvicorn.Config:
    """The server of a front end; `own` has the routes besides questions that it answers itself."""

    def relay(app: FastAPI) -> ASGIApp:
        return Relay(app, [route for router in own for route in router.routes], edge, transport, settings)

    app = web_app(
        edge,
        [answering(), *own],
        keys=keys,
        settings=settings,
        tokens=oidc_tokens(settings.oidc),
        form_of=form_of,
        beyond=relay,
    )
    return uvicorn_config(app, settings.receive_timeout, settings.shutdown_timeout)
