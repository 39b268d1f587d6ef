"""The app of a front end: answers questions itself, and forwards every other request to the process with the engine."""

import logging
import time
from collections.abc import Sequence

from starlette.routing import BaseRoute, Match
from starlette.types import Receive, Scope, Send

from onebert_server.answering.edge import Edge
from onebert_server.http.auth import PROBES, ApiKeys
from onebert_server.http.connection.refusals import REFUSAL
from onebert_server.http.formats import Formats
from onebert_server.http.head import HEAD
from onebert_server.http.pipeline import Pipeline, seconds_of
from onebert_server.http.problems import REFUSALS, problem_response
from onebert_server.http.web import WebApp, allowing_origins
from onebert_server.logs import Seldom
from onebert_server.remote.transport import NO_WORD, Transport
from onebert_server.settings import Settings
from onebert_store.errors import DeadlineExceeded, ShuttingDown, Unhealthy

_seldom = Seldom(logging.getLogger("onebert.forwarding"))

# Seconds in which a health request must be answered.
HEALTH_SECONDS = 2.0
ERROR = "error"
"""Request state key: why a request is not forwarded, or not answered."""


class Forwarding:
    """Checks the key of a request before it forwards it; the other process does everything else, as with any client.

    `app` answers questions, and requests for its own `routes`.
    """

    def __init__(
        self,
        app: WebApp,
        formats: Formats,
        routes: Sequence[BaseRoute],
        *,
        edge: Edge,
        keys: ApiKeys,
        transport: Transport,
        settings: Settings,
    ) -> None:
        self._app, self._formats, self._routes = app, formats, routes
        self._edge, self._keys, self._transport = edge, keys, transport
        self._timeout = settings.request_timeout
        self._refusing = Pipeline(edge, allowing_origins(_refuse, settings), app.form_of)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state = scope["state"]
        answered_here = self._formats.match(scope) or any(
            route.matches(scope)[0] is Match.FULL for route in self._routes
        )
        if answered_here or REFUSAL in state:
            await self._app(scope, receive, send)
            return
        try:
            await self._keys.admit(scope)
            await self._forward(scope, receive, send)
        except REFUSALS as error:
            state[ERROR] = error
            await self._refusing(scope, receive, send)

    async def _forward(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope["path"]
        if self._edge.draining and path == "/readyz":
            raise ShuttingDown("the server is stopping")
        seconds = HEALTH_SECONDS if path in PROBES else seconds_of(scope["state"][HEAD], self._timeout)
        try:
            await self._transport.forward(scope, receive, send, time.monotonic() + seconds)
        except TimeoutError:
            _seldom.warning(NO_WORD)
            raise (Unhealthy if path in PROBES else DeadlineExceeded)(NO_WORD) from None


async def _refuse(scope: Scope, receive: Receive, send: Send) -> None:
    await problem_response(scope, scope["state"][ERROR])(scope, receive, send)
