"""Sets up uvicorn and builds the web app, the same for every process of a server."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

import uvicorn
from fastapi import APIRouter
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from onebert_server.access.keys import KeyRing
from onebert_server.answering.edge import Edge
from onebert_server.http.auth import ApiKeys
from onebert_server.http.connection.connections import Connections
from onebert_server.http.connection.protocol import HttpProtocol
from onebert_server.http.formats import ABSTAINED, TRUNCATED, VECTORS_CUT, formats_of
from onebert_server.http.openapi import DocumentedApp
from onebert_server.http.pipeline import METHODS, SEQ_HEADER, Dispatch, Pipeline
from onebert_server.http.problems import FormOf, install_handlers, problems_alone
from onebert_server.settings import Settings
from onebert_store.errors import InvalidSettings

if TYPE_CHECKING:
    pass

# Seconds for which a browser caches a CORS preflight, and the response headers that a page may read.
CORS_SECONDS = 600
EXPOSED = (
    "ETag",
    "Location",
    "Retry-After",
    "Server-Timing",
    "WWW-Authenticate",
    "X-Request-Id",
    SEQ_HEADER,
    TRUNCATED,
    VECTORS_CUT,
    ABSTAINED,
)


def uvicorn_config(app: ASGIApp, shutdown_timeout: float) -> uvicorn.Config:
    """The uvicorn configuration; `shutdown_timeout` is in seconds, for open requests at shutdown."""
    connections = Connections()
    return uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], partial(HttpProtocol, connections)),
        interface="asgi3",
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=max(1, round(shutdown_timeout)),
    )


def api_keys(ring: KeyRing, oidc: tuple[str, str, str] | None) -> ApiKeys:
    """Authenticates by a ring, and by tokens of an OIDC issuer, if any: issuer, audience, and location of the keys."""
    if oidc is None:
        return ApiKeys(ring)
    try:
        from onebert_server.http.oidc import Tokens  # noqa: PLC0415 - only this module needs joserfc
    except ImportError:
        raise InvalidSettings("ONEBERT_OIDC_ISSUER needs joserfc: pip install '.[oidc]' in the checkout") from None
    return ApiKeys(ring, Tokens(*oidc))


class WebApp(Pipeline):
    """The pipeline with FastAPI behind it, which has the control plane's routes and the document of all routes."""

    def __init__(self, edge: Edge, inner: ASGIApp, form_of: FormOf, control: DocumentedApp) -> None:
        super().__init__(edge, inner, form_of)
        self.control, self.form_of = control, form_of


def web_app(
    edge: Edge,
    routers: Sequence[APIRouter],
    *,
    keys: ApiKeys,
    settings: Settings,
    form_of: FormOf = problems_alone,
) -> WebApp:
    """Builds an app with these routes; they find the edge as `app.state.edge`."""
    control = DocumentedApp(
        keys.ring,
        title="OneBERT",
        description="One frozen encoder, hundreds of classifiers: answers for any mix of tasks in one batch.",
        redirect_slashes=False,
    )
    control.state.edge = edge
    # FastAPI would build the routes of an included router once more.
    control.router.routes.extend(route for router in routers for route in router.routes)
    install_handlers(control)
    dispatch = Dispatch(edge, formats_of(routers), control, keys, settings)
    return WebApp(edge, allowing_origins(dispatch, settings), form_of, control)


def allowing_origins(inner: ASGIApp, settings: Settings) -> ASGIApp:
    """Wraps what checks keys for pages of the allowed origins, since a preflight has no key."""
    if not settings.cors_origins:
        return inner
    return CORSMiddleware(
        inner,
        # Credentials (cookies) stay disallowed.
        allow_origins=settings.cors_origins,
        allow_methods=sorted(METHODS),
        allow_headers=["*"],
        expose_headers=EXPOSED,
        max_age=CORS_SECONDS,
    )
