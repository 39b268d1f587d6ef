"""The replica, and what who asks sees of it, as parameters of routes; a front end does not import this."""

from typing import Annotated

from fastapi import Depends, Request

from onebert_server.runtime import Runtime
from onebert_server.versions.view import View


async def _runtime(request: Request) -> Runtime:
    # Async only because FastAPI sends plain functions through its thread pool.
    runtime: Runtime = request.app.state.edge
    return runtime


async def _view(request: Request) -> View:
    return View(request.app.state.edge.catalog, request.state.context.principal)


RuntimeOf = Annotated[Runtime, Depends(_runtime)]
ViewOf = Annotated[View, Depends(_view)]
