"""Shared by all routes: dependencies, strict JSON bodies, chunked responses, and the documentation of problems."""

import asyncio
from collections.abc import Callable, Container, Coroutine, Mapping
from typing import Annotated, Any, TypeVar

import numpy as np
from fastapi import Depends, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.routing import APIRoute
from pydantic import BaseModel, Field, ValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from onebert_server.access.context import Context
from onebert_server.edge import Edge
from onebert_server.fairness.shares import Permits
from onebert_server.http.digests import SentDigests
from onebert_server.http.middleware import BODIES
from onebert_server.http.schemas.system import Problem
from onebert_server.limits import MAX_REQUEST_TIMEOUT
from onebert_store.errors import TooLarge
from onebert_store.file import strict_json

T = TypeVar("T")
Body = TypeVar("Body", bound=BaseModel)

# Maximum values in a body, including lists and objects: the largest request names 1024 tasks.
MAX_VALUES = 2048
# Maximum bytes of a body that the event loop parses itself, and of a response that it encodes: under a millisecond.
MAX_BYTES_ON_LOOP = 2**15
# Bytes per send of a large response: a socket buffers about this many before `send` waits.
PIECE_BYTES = 2**16


async def _edge(request: Request) -> Edge:
    # Async, because FastAPI runs plain functions in its thread pool.
    edge: Edge = request.app.state.edge
    return edge


async def _context(
    request: Request,
    x_request_timeout: Annotated[
        float | None,
        Header(gt=0, le=MAX_REQUEST_TIMEOUT, description="Seconds after which the answer is of no use; then 504."),
    ] = None,
    onebert_min_seq: Annotated[
        int | None,
        Header(
            alias="OneBERT-Min-Seq",
            ge=0,
            lt=10**18,
            description="What `OneBERT-Seq` said of a change: the answer knows of that change, or comes when it does.",
        ),
    ] = None,
) -> Context:
    # The header parameters are only documentation: ContextMiddleware has parsed them before routing.
    context: Context = request.state.context
    return context


# The parameter of Prometheus' federation.
MetricNames = Annotated[
    list[Annotated[str, Field(max_length=128)]],
    Query(alias="name[]", max_length=64, description="names of the samples that are wanted; all of them without"),
]
EdgeOf = Annotated[Edge, Depends(_edge)]
ContextOf = Annotated[Context, Depends(_context)]

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": "A problem of the catalogue in docs/api.md."}
    for status in ("4XX", "5XX", 422)
}


async def whole_body(scope: Scope, receive: Receive, bodies: Permits) -> bytes:
    """Reads a request's body; counts the bytes of an incomplete body in `bodies` for its principal."""
    principal = scope["state"]["context"].principal.name
    parts: list[bytes] = []
    held = 0
    try:
        while (message := await receive())["type"] != "http.disconnect":
            part = message.get("body", b"")
            if not message.get("more_body", False):
                return b"".join([*parts, part])
            bodies.take(principal, len(part))
            parts.append(part)
            held += len(part)
    finally:
        bodies.give_back(principal, held)
    raise ClientDisconnect


class StrictRequest(Request):
    """A request whose JSON must have unique keys, finite numbers and bounded depth."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await whole_body(self.scope, self.receive, self.scope["state"][BODIES])
        return self._body

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            self._json = await self.read(parsed)
        return self._json

    async def read(self, decode: Callable[[bytes], T]) -> T:
        """Decodes the body and checks its digests, in a thread if it is large."""
        body = await self.body()
        digests = SentDigests(self.headers)

        def checked() -> T:
            digests.update(body)
            digests.check()
            return decode(body)

        return checked() if len(body) <= MAX_BYTES_ON_LOOP else await asyncio.to_thread(checked)


class Answer(Response):
    """A response that is sent in pieces as the client reads; counts the bytes of a large one until they are sent.

    Raises QueueFull before the first byte if too many bytes already wait for clients.
    """

    def __init__(
        self, request: Request, content: bytes | str, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(content, headers=headers, media_type=media_type)
        edge: Edge = request.app.state.edge
        self._untaken, self._principal = edge.untaken, request.state.context.principal.name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        size = len(self.body)
        if size <= PIECE_BYTES:
            await super().__call__(scope, receive, send)
            return
        self._untaken.take(self._principal, size)
        try:
            await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
            for end in range(PIECE_BYTES, size + PIECE_BYTES, PIECE_BYTES):
                piece = bytes(self.body[end - PIECE_BYTES : end])
                await send({"type": "http.response.body", "body": piece, "more_body": end < size})
        finally:
            self._untaken.give_back(self._principal, size)


class StrictRoute(APIRoute):
    """A route that accepts only strict JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            if self.body_field is not None:
                require_media_type(request, "application/json")
            given = StrictRequest(request.scope, request.receive)
            if self.body_field is not None:
                # Read the body before FastAPI does, because it turns errors during its own read into 400.
                await given.body()
            return await handle(given)

        return strict


def require_media_type(request: Request, expected: str, accepts: Container[str] = ()) -> None:
    """Refuses a body of another type (unless `accepts` has it), or with a Content-Encoding: 415."""
    given = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if given != expected and given not in accepts:
        raise HTTPException(415, f"the body's Content-Type must be {expected}")
    # InflateMiddleware has removed gzip by now, so the body must be unencoded.
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        if request.method != "POST":
            raise HTTPException(415, "the body must be sent without Content-Encoding", {"Accept-Encoding": "identity"})
        refused = "the body's Content-Encoding may be gzip alone, and that where the body is sent without a digest"
        raise HTTPException(415, refused, {"Accept-Encoding": "gzip, identity"})


def validated(kind: type[Body], given: Any, *at: str | int) -> Body:
    """Validates JSON values as a model; `at` is their location in the body."""
    try:
        return kind.model_validate(given)
    except ValidationError as error:
        reasons = error.errors(include_url=False, include_input=False)
        raise RequestValidationError([{**one, "loc": ("body", *at, *one["loc"])} for one in reasons]) from None


def parsed(body: bytes) -> Any:
    """Parses a body as strict JSON; raises TooLarge, or HTTPException, which FastAPI lets through here."""
    # Checked before parsing, since creating a million objects takes seconds.
    if len(body) > MAX_VALUES and count_values(body) > MAX_VALUES:
        raise TooLarge(f"the body holds more than {MAX_VALUES} values; send it in parts")
    try:
        return strict_json.parse(body)
    except ValueError as error:
        detail = f"the body is not one JSON value in UTF-8 with distinct keys and finite numbers: {error}"
        raise HTTPException(400, detail) from None


def count_values(body: bytes) -> int:
    """An upper bound of the number of values in a JSON text, from its commas, brackets and braces.

    Over `MAX_VALUES` the count excludes those inside strings, in linear time.
    """
    at_most = sum(body.count(mark) for mark in (b",", b"[", b"{"))
    if at_most <= MAX_VALUES:
        return at_most
    # With escaped backslashes and then escaped quotes removed, every quote opens or closes a string.
    characters = np.frombuffer(body.replace(rb"\\", b"").replace(rb"\"", b""), np.uint8)
    inside = np.logical_xor.accumulate(characters == ord('"'))
    marks = (characters == ord(",")) | (characters == ord("[")) | (characters == ord("{"))
    return int(np.count_nonzero(marks & ~inside))
