"""The replica as a parameter of routes; a front end has none, and does not import this."""

from typing import Annotated

from fastapi import Depends, Request

from onebert_server.runtime import Runtime


async def _runtime(request: Request) -> Runtime:
    # Async only because FastAPI sends plain functions through its thread pool.
    runtime: Runtime = request.app.state.edge
    return runtime


RuntimeOf = Annotated[Runtime, Depends(_runtime)]
