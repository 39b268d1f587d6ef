"""Route parameters for the runtime and the principal's view, and a thread helper. Front ends never import this."""

from collections.abc import Awaitable, Callable
from concurrent.futures import Executor
from typing import Annotated, TypeVar

from fastapi import Depends, Request

from onebert_server.runtime import Runtime
from onebert_server.threads import run_in
from onebert_server.versions.view import View

T = TypeVar("T")


async def _runtime(request: Request) -> Runtime:
    # Async, because FastAPI runs plain functions in its thread pool.
    runtime: Runtime = request.app.state.edge
    return runtime


async def _view(request: Request) -> View:
    return View(request.app.state.edge.catalog, request.state.context.principal)


RuntimeOf = Annotated[Runtime, Depends(_runtime)]
ViewOf = Annotated[View, Depends(_view)]


def part_of(kind: type[T]) -> Callable[[Request], Awaitable[T]]:
    """The dependency of a route on its extension's part, which is always open."""

    async def part(request: Request) -> T:
        runtime: Runtime = request.app.state.edge
        return runtime.parts[kind]

    return part


async def in_thread(runtime: Runtime, call: Callable[..., T], *arguments: object, pool: Executor | None = None) -> T:
    """Runs a call in a thread of `pool`, by default one of the registry's threads."""
    return await run_in(pool or runtime.registrars, call, *arguments)
