"""Sets up uvicorn and builds the app with its middleware, the same for every process of a server."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import cast

import uvicorn
from fastapi import APIRouter, Depends, FastAPI
from fastapi.security import HTTPBearer
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from onebert_server.access.keys import KeyRing
from onebert_server.edge import Edge
from onebert_server.http.auth import ApiKeys, KeyMiddleware, TokensOf
from onebert_server.http.connections import Connections
from onebert_server.http.inflate import InflateMiddleware
from onebert_server.http.lean.formats import Formats
from onebert_server.http.lean.middleware import LeanMiddleware
from onebert_server.http.lean.route import DirectRoute
from onebert_server.http.middleware import (
    METHODS,
    SEQ_HEADER,
    BodyLimitMiddleware,
    ContextMiddleware,
    RequestMiddleware,
)
from onebert_server.http.openapi import DocumentedApp
from onebert_server.http.problems import FormOf, install_handlers, problems_alone
from onebert_server.http.protocol import LimitedProtocol
from onebert_server.http.refusals import RefusalMiddleware
from onebert_server.settings import Settings
from onebert_store.errors import InvalidSettings

# Seconds for which a browser caches a CORS preflight, and the response headers that a page may read.
CORS_SECONDS = 600
EXPOSED = ("ETag", "Location", "Retry-After", "Server-Timing", "WWW-Authenticate", "X-Request-Id", SEQ_HEADER)


def uvicorn_config(app: ASGIApp, receive_timeout: float, shutdown_timeout: float) -> uvicorn.Config:
    """The uvicorn configuration; timeouts in seconds: for a request to arrive, and for open requests at shutdown."""
    connections = Connections(receive_timeout)
    return uvicorn.Config(
        app,
        http=cast(type[asyncio.Protocol], partial(LimitedProtocol, connections)),
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=max(1, round(shutdown_timeout)),
    )


def oidc_tokens(oidc: tuple[str, str, str] | None) -> TokensOf | None:
    """Creates the OIDC authenticator from issuer, audience and the location of the keys; None without an issuer."""
    if oidc is None:
        return None
    try:
        from onebert_server.http.oidc import Tokens  # noqa: PLC0415 - only this module needs joserfc
    except ImportError:
        raise InvalidSettings("ONEBERT_OIDC_ISSUER needs joserfc: pip install 'onebert[oidc]'") from None
    return Tokens(*oidc)


def formats_of(routers: Sequence[APIRouter]) -> Formats:
    """The wire formats of the routers' direct routes."""
    return Formats(route.format for router in routers for route in router.routes if isinstance(route, DirectRoute))


def web_app(
    edge: Edge,
    routers: Sequence[APIRouter],
    *,
    keys: KeyRing,
    settings: Settings,
    tokens: TokensOf | None = None,
    form_of: FormOf = problems_alone,
) -> FastAPI:
    """Builds an app with these routes; they find the edge as `app.state.edge`."""
    app = DocumentedApp(
        title="OneBERT",
        description="One frozen encoder, hundreds of classifiers: answers for any mix of tasks in one batch.",
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        # Documentation only: KeyMiddleware has checked the key before routing.
        dependencies=[Depends(HTTPBearer(auto_error=False))] if not keys.is_open else [],
    )
    app.state.edge = edge
    for router in routers:
        app.include_router(router)
    install_handlers(app, [route for router in routers for route in router.routes])
    # The last one added is outermost: id and metrics, CORS, refusals, key, context, body limits, lean path.
    # InflateMiddleware is innermost: the lean path leaves compressed bodies to it.
    app.add_middleware(InflateMiddleware)
    app.add_middleware(LeanMiddleware, edge=edge, formats=formats_of(routers))
    app.add_middleware(BodyLimitMiddleware, max_bytes=settings.max_body_bytes, timeout=settings.receive_timeout)
    app.add_middleware(ContextMiddleware, timeout=settings.request_timeout)
    app.add_middleware(KeyMiddleware, keys=ApiKeys(keys, tokens))
    app.add_middleware(RefusalMiddleware)
    if settings.cors_origins:
        # Outside the key check, because a preflight has no key. Credentials (cookies) stay disallowed.
        app.add_middleware(
            CORSMiddleware,
            allow_origins=settings.cors_origins,
            allow_methods=sorted(METHODS),
            allow_headers=["*"],
            expose_headers=EXPOSED,
            max_age=CORS_SECONDS,
        )
    app.add_middleware(RequestMiddleware, edge=edge, form_of=form_of)
    return app
