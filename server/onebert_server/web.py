"""HTTP as every process of a server speaks it: how uvicorn and the log are set, and the app around its routes."""

import logging
from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractAsyncContextManager

import uvicorn
from fastapi import APIRouter, Depends, FastAPI
from fastapi.security import HTTPBearer
from starlette.types import ASGIApp

from onebert_server.auth import ApiKeys, KeyMiddleware
from onebert_server.middleware import BodyLimitMiddleware, RequestMiddleware
from onebert_server.problems import install_handlers
from onebert_server.routing import FrontParts


def log_to_stderr(level: str) -> None:
    """Sets what is logged; to be called once."""
    logging.basicConfig(level=level.upper(), format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    # Its own start-up lines say what ours says; its warnings and errors stay.
    logging.getLogger("uvicorn").setLevel(max(logging.WARNING, logging.getLogger().level))


def uvicorn_config(app: ASGIApp, shutdown_timeout: float) -> uvicorn.Config:
    """What uvicorn shall do; seconds are for requests in flight at the end."""
    return uvicorn.Config(
        app,
        access_log=False,
        log_config=None,
        server_header=False,
        proxy_headers=False,
        ws="none",
        timeout_graceful_shutdown=max(1, round(shutdown_timeout)),
    )


def web_app(
    parts: FrontParts,
    routers: Sequence[APIRouter],
    *,
    api_keys: Iterable[bytes],
    max_body_bytes: int,
    receive_timeout: float,
    lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None,
) -> FastAPI:
    """An app with these routes, which find the parts as `app.state.parts`."""
    app = FastAPI(
        title="OneBERT",
        description="One frozen encoder, hundreds of classifiers: answers for any mix of tasks in one batch.",
        lifespan=lifespan,
        redoc_url=None,
        redirect_slashes=False,
        # For the documentation only: KeyMiddleware has checked the key before any route is looked up.
        dependencies=[Depends(HTTPBearer(auto_error=False))],
    )
    app.state.parts = parts
    for router in routers:
        app.include_router(router)
    install_handlers(app)
    # Added last is outermost: id and metrics, then the key, then the body's limits.
    app.add_middleware(BodyLimitMiddleware, max_bytes=max_body_bytes, timeout=receive_timeout)
    app.add_middleware(KeyMiddleware, keys=ApiKeys(api_keys))
    app.add_middleware(RequestMiddleware, parts=parts)
    return app
