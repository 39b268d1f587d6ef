"""Shared by all routes: dependencies, strict JSON bodies, chunked responses, and the documentation of problems."""

import re
from collections.abc import Callable, Container, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Annotated, Any

import numpy as np
from fastapi import Depends, Header, Query, Request, Response
from fastapi.routing import APIRoute
from pydantic import Field
from starlette.exceptions import HTTPException
from starlette.types import Receive, Scope, Send

from onebert_server.access.context import Context
from onebert_server.contract.problems import ProblemResponse
from onebert_server.fairness.shares import Permits
from onebert_server.http.body import BODY
from onebert_server.http.head import HEAD, Head
from onebert_server.http.replies import send_whole
from onebert_server.limits import MAX_REQUEST_TIMEOUT
from onebert_store.errors import TooLarge
from onebert_store.file import strict_json
from onebert_store.file.fields import Line

# Maximum values in a body, including lists and objects: the largest request names 1024 tasks.
MAX_VALUES = 2048
_FIRST_LIST = re.compile(rb'"(\w{1,64})"\s*:\s*\[')


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
    # The header parameters are only documentation: the pipeline has parsed them before routing.
    context: Context = request.state.context
    return context


# The parameter of Prometheus' federation.
MetricNames = Annotated[
    list[Annotated[str, Field(max_length=128)]],
    Query(alias="name[]", max_length=64, description="names of the samples that are wanted; all of them without"),
]
ContextOf = Annotated[Context, Depends(_context)]


async def _because(
    context: ContextOf, message: Annotated[Line | None, Query(description="why, for the audit trail")] = None
) -> Context:
    return replace(context, message=message)


BecauseOf = Annotated[Context, Depends(_because)]
"""The context of a deletion, which has no body to say why."""

PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": ProblemResponse, "description": "A problem of the table in docs/reference/errors.md."}
    for status in ("4XX", "5XX", 422)
}


class StrictRequest(Request):
    """A request whose JSON must have unique keys, finite numbers and bounded depth."""

    async def body(self) -> bytes:
        if not hasattr(self, "_body"):
            self._body = await self.scope["state"][BODY].read()
        return self._body

    most_values = MAX_VALUES

    async def json(self) -> Any:
        if not hasattr(self, "_json"):
            parse = partial(parsed, limit=self.most_values)
            self._json = await self.scope["state"][BODY].decoded(await self.body(), parse)
        return self._json


class Answer(Response):
    """A response that is sent in pieces as the client reads; see `send_whole`."""

    def __init__(
        self, request: Request, content: bytes | str, media_type: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(content, headers=headers, media_type=media_type)
        self._untaken: Permits = request.app.state.edge.untaken
        self._principal = request.state.context.principal.name

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        content = bytes(self.body)
        await send_whole(send, self.status_code, self.raw_headers, content, self._untaken, self._principal)


class StrictRoute(APIRoute):
    """A route that accepts only strict JSON, of at most `most_values` values."""

    most_values = MAX_VALUES

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handle = super().get_route_handler()

        async def strict(request: Request) -> Response:
            strict_request = StrictRequest(request.scope, request.receive)
            strict_request.most_values = self.most_values
            if self.body_field is not None:
                require_media_type(request.scope, "application/json")
                # Read and decode the body before FastAPI does, because it turns errors of its own reading into 400.
                if await strict_request.body():
                    await strict_request.json()
            return await handle(strict_request)

        return strict


def require_media_type(scope: Scope, expected: str, accepts: Container[str] = ()) -> None:
    """Refuses a body of another type (unless `accepts` has it), or with a Content-Encoding that is not undone: 415."""
    head: Head = scope["state"][HEAD]
    media_type = head.first(b"content-type")
    if media_type != expected and media_type not in accepts:
        media_type = media_type.partition(";")[0].strip().lower()
        if media_type != expected and media_type not in accepts:
            raise HTTPException(415, f"the body's Content-Type must be {expected}")
    if b"content-encoding" not in head.fields or scope["state"][BODY].inflates:
        return
    if head.first(b"content-encoding").strip().lower() != "identity":
        if scope["method"] != "POST":
            raise HTTPException(415, "the body must be sent without Content-Encoding", {"Accept-Encoding": "identity"})
        refused = "the body's Content-Encoding may be gzip alone, and that where the body is sent without a digest"
        raise HTTPException(415, refused, {"Accept-Encoding": "gzip, identity"})


def parsed(body: bytes, limit: int = MAX_VALUES) -> Any:
    """Parses a body as strict JSON; raises TooLarge, or HTTPException, which FastAPI lets through here."""
    try:
        return strict_json.parse(counted(body, limit))
    except ValueError as error:
        detail = f"the body is not one JSON value in UTF-8 with distinct keys and finite numbers: {error}"
        raise HTTPException(400, detail) from None


def counted(body: bytes, limit: int = MAX_VALUES, most_items: Callable[[str], int | None] | None = None) -> bytes:
    """Returns a body; raises TooLarge before it is decoded, since creating a million objects takes seconds.

    `most_items` knows the maximum length of the list that a field takes.
    """
    if len(body) > limit and count_values(body) > limit:
        named = _FIRST_LIST.search(body)
        field = named[1].decode() if named else "it"
        most = most_items and most_items(field)
        parts = f"parts of at most {most}" if most else "parts"
        raise TooLarge(f"the body holds more than {limit} values; send {field} in {parts}")
    return body


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
