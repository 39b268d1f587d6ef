"""A FastAPI route whose plain questions the lean path answers, in the same format."""

import time
from collections.abc import Callable, Coroutine
from functools import cached_property, partial
from typing import Any, TypeVar

from fastapi import Request, Response
from pydantic import BaseModel

from onebert_server.access.context import Context
from onebert_server.http.lean.formats import Format, OwnFormat
from onebert_server.http.patience import Patience, in_its_time
from onebert_server.http.strict import Answer, StrictRequest, StrictRoute, parsed, require_media_type, validated
from onebert_server.telemetry.observed import PARSE

T = TypeVar("T")


class DirectRoute(StrictRoute):
    """A strict route whose function takes the path's parameters, a body, the context and the edge, and returns JSON.

    Skips FastAPI's dependency solver, which takes as long as tokenizing. Cancels the function at the deadline or on
    disconnect. The function encodes the JSON itself, so that it can encode a large reply in a worker.
    """

    @cached_property
    def format(self) -> Format:
        return self.own_format

    @cached_property
    def own_format(self) -> OwnFormat:
        return OwnFormat(self.path, self.path_regex, parsed, partial(validated, self.body_type), self.endpoint)

    @property
    def body_type(self) -> type[BaseModel]:
        kind: type[BaseModel] = self.endpoint.__annotations__["body"]
        return kind

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:

        async def direct(request: Request) -> Response:
            context, edge, form = request.state.context, request.app.state.edge, self.format
            # First, so that a refusal under overload is cheap.
            edge.answerer.check(context)
            require_media_type(request, form.media_type, form.accepts)
            read = partial(timed, partial(form.read, scope=request.scope), context)
            body = await StrictRequest(request.scope, request.receive).read(read)
            context = in_its_time(context, body)
            async with Patience(context, request.receive):
                content, extra, media_type = await form.reply(request.path_params, body, context, edge)
            return Answer(request, content, media_type or form.media_type, extra)

        return direct


def timed(decode: Callable[[bytes], T], context: Context, body: bytes) -> T:
    """Decodes a body and records the duration as a phase."""
    began = time.monotonic()
    decoded = decode(body)
    context.observed.phase(PARSE, began, time.monotonic())
    return decoded
