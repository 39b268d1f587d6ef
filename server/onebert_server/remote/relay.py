"""The control plane of a front end: relays requests to the process with the engine.

The pipeline around it gives ids, counts, checks keys, deadlines and body limits, and turns errors into problems.
"""

import logging
import math
import time
from collections.abc import Sequence
from contextlib import aclosing
from typing import NamedTuple

from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onebert_server.answering.edge import Edge
from onebert_server.fairness.shares import Permits
from onebert_server.http.auth import OPEN_PATHS, PROBES, is_open
from onebert_server.http.body import BODY, Body
from onebert_server.logs import Seldom
from onebert_server.remote import wire
from onebert_server.remote.transport import NO_WORD, Transport
from onebert_server.settings import Settings
from onebert_store.errors import DeadlineExceeded, ShuttingDown, Unhealthy

_seldom = Seldom(logging.getLogger("onebert.relaying"))

# Concurrent relayed requests. Health and documentation need no key and have separate limits of the same size, so that
# slow uploads, health probes and slow anonymous readers cannot block one another. One principal or address gets at most
# half of a limit: `Permits` leaves as much free as it gives to one.
MAX_RELAYED = 256
# Seconds in which a health request must be answered.
HEALTH_SECONDS = 2.0
SCOPE = (
    *("type", "asgi", "http_version", "server", "client", "scheme"),
    *("method", "root_path", "path", "raw_path", "query_string"),
)


class Template(NamedTuple):
    """The route that answered in the other process, for the metrics."""

    path: str


class Relay:
    """Relays every request but those for routes of the front end's `own`, which `app` answers."""

    def __init__(
        self, app: ASGIApp, own: Sequence[BaseRoute], edge: Edge, transport: Transport, settings: Settings
    ) -> None:
        self._app = app
        self._own = own
        self._edge = edge
        self._transport = transport
        self._max_upload_bytes = settings.max_upload_bytes
        self._keyed, self._health, self._documentation = _room(), _room(), _room()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(route.matches(scope)[0] is Match.FULL for route in self._own):
            await self._app(scope, receive, send)
            return
        path, principal = scope["path"], scope["state"]["context"].principal.name
        if self._edge.draining and path == "/readyz":
            raise ShuttingDown("the server is stopping")
        room, remaining = self._keyed, scope["state"]["context"].deadline - time.monotonic()
        if path in PROBES:
            room, remaining = self._health, HEALTH_SECONDS
        elif path in OPEN_PATHS:
            room = self._documentation
        body = _body(scope, self._max_upload_bytes)
        replies = self._transport.relay(_request(scope, remaining), body)
        with room.held(principal):
            try:
                async with aclosing(replies):
                    async for reply in replies:
                        if message := _message(scope, reply):
                            await send(message)
            except TimeoutError:
                _seldom.warning(NO_WORD)
                raise (Unhealthy if path in PROBES else DeadlineExceeded)(NO_WORD) from None


def _room() -> Permits:
    return Permits(MAX_RELAYED, "as many requests wait for the process with the engine as a front end relays")


def _body(scope: Scope, max_upload_bytes: int) -> Body:
    """The body as it was sent: the other process inflates it, or refuses its encoding."""
    body: Body = scope["state"][BODY]
    body.receive = body.limited
    if scope["method"] == "PUT" and not is_open(scope):
        body.most, body.deadline = max_upload_bytes, math.inf
    return body


def _request(scope: Scope, remaining: float) -> wire.Request:
    context = scope["state"]["context"]
    return wire.Request(
        {name: scope[name] for name in SCOPE},
        scope["headers"],
        context.principal,
        context.request_id,
        remaining=remaining,
        min_seq=context.min_seq,
    )


def _message(scope: Scope, reply: wire.Relayed) -> Message | None:
    """The message for the client, if it is one; the metrics find route and problem in the scope."""
    match reply:
        case wire.Matched(route):
            scope["route"] = Template(route)
            return None
        case wire.Part(body, more):
            return {"type": "http.response.body", "body": body, "more_body": more}
        case wire.Response(status, headers, problem):
            if problem:
                scope["state"]["problem"] = problem
            return {"type": "http.response.start", "status": status, "headers": headers}
