"""Relays requests that a front end on a cluster does not answer to a replica, one call per request."""

import asyncio
import math
from collections.abc import Sequence
from typing import Any

from ray.exceptions import RayActorError, RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.routing import BaseRoute, Match
from starlette.types import ASGIApp, Receive, Scope, Send

from onebert_server.edge import Listening
from onebert_server.fairness.shares import Permits
from onebert_server.front_ends.forwarding import HEALTH_PATHS, HEALTH_PATIENCE, SCOPE
from onebert_server.http.body import BODY, Body
from onebert_server.on_ray import messages
from onebert_store.errors import ShuttingDown

# Requests that one front end may relay concurrently, and bytes of bodies that it may hold.
MAX_RELAYED = 256
MAX_HELD_BYTES = 2**29
# Methods that are retried when a replica dies. Other methods may already have taken effect.
REPEATABLE = frozenset({"GET", "HEAD"})
ATTEMPTS = 4
# The front end's own middleware adds these headers to every response.
_OWN_HEADERS = frozenset({b"x-request-id", b"server-timing", b"connection"})


class Relay:
    """The control plane of a front end: the app serves its own routes, a replica everything else.

    The pipeline around it checks keys, deadlines and body limits, and turns errors into problems. The replica checks a
    relayed request again, and its decision counts. `max_upload_bytes` limits PUT requests; `patience` is in seconds.
    """

    def __init__(
        self,
        app: ASGIApp,
        own: Sequence[BaseRoute],
        edge: Listening,
        replicas: DeploymentHandle[Any],
        max_upload_bytes: int,
        patience: float,
    ) -> None:
        self._app = app
        self._own = own
        self._edge = edge
        self._request = replicas.options(method_name="request")
        self._max_upload_bytes = max_upload_bytes
        self._patience = patience
        full = "as many requests wait for replicas as a front end relays; try again soon"
        # A separate limit, so that health probes pass while other requests use up theirs.
        self._relayed, self._health = Permits(MAX_RELAYED, full), Permits(MAX_RELAYED, full)
        self._held = Permits(MAX_HELD_BYTES, "as many bodies are under way as a front end holds; try again soon")

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if any(route.matches(scope)[0] is Match.FULL for route in self._own):
            await self._app(scope, receive, send)
            return
        principal = scope["state"]["context"].principal.name
        room = self._health if scope["path"] in HEALTH_PATHS else self._relayed
        if self._edge.draining and scope["path"] == "/readyz":
            raise ShuttingDown("the server is stopping")
        with room.held(principal):
            answer = await self._relay(scope, principal)
        headers = [(name, value) for name, value in answer.headers if name not in _OWN_HEADERS]
        await send({"type": "http.response.start", "status": answer.status, "headers": headers})
        await send({"type": "http.response.body", "body": answer.body})

    async def _relay(self, scope: Scope, principal: str) -> messages.Answer:
        arriving: Body = scope["state"][BODY]
        if scope["method"] == "PUT":
            arriving.most, arriving.deadline = self._max_upload_bytes, math.inf
        body = await arriving.whole(self._held)
        with self._held.held(principal, len(body)):
            return await self._ask(scope, body)

    async def _ask(self, scope: Scope, body: bytes) -> messages.Answer:
        sent = _scope(scope)
        patience = min(self._patience, HEALTH_PATIENCE) if scope["path"] in HEALTH_PATHS else self._patience
        try:
            async with asyncio.timeout(patience):
                for _ in range(ATTEMPTS if scope["method"] in REPEATABLE else 1):
                    try:
                        answer: messages.Answer = await self._request.remote(sent, body)
                        return answer
                    except RayActorError:
                        continue
        except (TimeoutError, RayError, RayServeException):
            pass
        raise ShuttingDown("no replica answers")


def _scope(scope: Scope) -> dict[str, object]:
    own = {b"x-request-id": scope["state"]["request_id"]}
    if span := scope["state"]["observed"].span:
        own |= dict(zip((b"traceparent", b"tracestate"), span.carried, strict=True))
    headers = [(name, value) for name, value in scope["headers"] if name not in own]
    headers += [(name, value.encode()) for name, value in own.items()]
    return {name: scope[name] for name in SCOPE} | {"headers": headers}
