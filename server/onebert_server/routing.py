"""What all routes share: the parts of a server they work on, strict JSON bodies, and how they are documented."""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

from fastapi import Depends, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, ValidationError
from starlette.exceptions import HTTPException

from onebert_server.answers import Answerer
from onebert_server.metrics import Metrics
from onebert_server.schemas import Problem
from onebert_server.settings import Settings
from onebert_store import strict_json

# For types alone: a front end knows neither torch nor the registry.
if TYPE_CHECKING:
    from onebert_encoder.base import Base
    from onebert_server.admission import Admission
    from onebert_server.catalog import Catalog
    from onebert_server.directory import Directory
    from onebert_server.engine import Engine
    from onebert_server.front_ends import FrontEnds
    from onebert_store.registry import Registry

MAX_RECEIVING = 8


@dataclass
class FrontParts:
    """What answers requests, in every process that does.

    Attributes:
        draining: set when the server was told to stop; /readyz says so.
    """

    answerer: Answerer
    metrics: Metrics
    draining: bool = field(default=False, kw_only=True)


@dataclass
class Parts(FrontParts):
    """Everything that the process with the engine is made of; app.py puts it together.

    Attributes:
        workers: threads for tokenizing and reading answers.
        registrars: threads for the registry's database and files, so that a slow disk holds up no answer.
        uploader: the one thread that takes uploads, so that they queue behind each other and not before answers.
        receiving: how many uploads may be read at a time; the bodies of others wait in their sockets.
        front_ends: the processes that answer besides; there may be none.
    """

    settings: Settings
    base: "Base"
    engine: "Engine"
    registry: "Registry"
    catalog: "Catalog"
    admission: "Admission"
    front_ends: "FrontEnds"
    workers: Executor
    registrars: Executor
    uploader: Executor
    receiving: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_RECEIVING))

    @property
    def directory(self) -> "Directory":
        """What references resolve against."""
        return self.catalog.directory


async def _parts(request: Request) -> Parts:
    # Async only because FastAPI sends plain functions through its thread pool.
    parts: Parts = request.app.state.parts
    return parts


PartsOf = Annotated[Parts, Depends(_parts)]
FrontPartsOf = Annotated[FrontParts, Depends(_parts)]

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": "A problem of the catalogue in docs/api.md."}
    for status in ("4XX", "5XX", 422)
}


class StrictRequest(Request):
    """A request whose JSON has one value per key, finite numbers and bounded depth."""

    async def json(self) -> Any:
        """Decodes the body; HTTPException is the one error that FastAPI lets through here."""
        if not hasattr(self, "_json"):
            try:
                self._json = strict_json.parse(await self.body())
            except ValueError:
                rule = "the body is not one JSON value in UTF-8 with distinct keys and finite numbers"
                raise HTTPException(400, rule) from None
        return self._json


class StrictRoute(APIRoute):
    """A route that takes JSON only, and only strict JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """FastAPI's handler around a StrictRequest."""
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if self.body_field is not None:
                require_media_type(request, "application/json")
            return await handle(StrictRequest(request.scope, request.receive))

        return strict


class DirectRoute(StrictRoute):
    """A strict route for functions of the path's parameters, a body and the parts, called without FastAPI's solver.

    The solver takes as long as tokenizing; bodies are validated, documented and refused as FastAPI does it.
    """

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The whole handler."""
        kind: type[BaseModel] = self.endpoint.__annotations__["body"]

        async def direct(request: Request) -> Response:
            require_media_type(request, "application/json")
            given = await StrictRequest(request.scope, request.receive).json()
            try:
                body = kind.model_validate(given, from_attributes=True)
            except ValidationError as error:
                reasons = error.errors(include_url=False)
                raise RequestValidationError([{**one, "loc": ("body", *one["loc"])} for one in reasons]) from None
            answer: BaseModel = await self.endpoint(**request.path_params, body=body, parts=request.app.state.parts)
            content = answer.model_dump_json(exclude_none=self.response_model_exclude_none)
            return Response(content, media_type="application/json")

        return direct


def require_media_type(request: Request, expected: str) -> None:
    """Refuses a body of another type: 415."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != expected:
        raise HTTPException(415, f"the body's Content-Type must be {expected}")
