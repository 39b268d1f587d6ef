"""The route whose questions the lean path may answer: by the same format, behind FastAPI's layers."""

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
    """A strict route for functions of the path's parameters, a body, the context and the edge, which return JSON.

    They are called without FastAPI's solver, which takes as long as tokenizing, and given up when their time is over or
    the client has left. Bodies are validated, documented and refused as FastAPI does it. The function makes the JSON
    itself, since it knows where: a large one in a worker.
    """

    @cached_property
    def format(self) -> Format:
        """What this route is asked and answered in, for whoever takes plain questions in front of FastAPI."""
        return self.own_format

    @cached_property
    def own_format(self) -> OwnFormat:
        """The format by the route's function."""
        return OwnFormat(self.path, self.path_regex, parsed, partial(validated, self.body_type), self.endpoint)

    @property
    def body_type(self) -> type[BaseModel]:
        """What the function takes as body."""
        kind: type[BaseModel] = self.endpoint.__annotations__["body"]
        return kind

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The whole handler."""

        async def direct(request: Request) -> Response:
            context, edge, form = request.state.context, request.app.state.edge, self.format
            # First, since under overload a refusal should cost as little as it can.
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
    """What `decode` makes of a body, with the time it takes noted."""
    began = time.monotonic()
    decoded = decode(body)
    context.observed.phase(PARSE, began, time.monotonic())
    return decoded
