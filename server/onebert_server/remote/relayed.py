"""The control plane of the process with the engine, as front ends ask it: their pipelines have checked the requests."""

import asyncio
import logging
import time

from starlette.types import ASGIApp, Message, Receive, Scope

from onebert_server.access.context import Context
from onebert_server.http.body import BODY, Bodies, Body
from onebert_server.http.connection.refusals import WHOLE
from onebert_server.http.head import HEAD, Head
from onebert_server.http.problems import FORM_OF, REFUSALS, FormOf, internal_error, problem_response
from onebert_server.logs import log_failure
from onebert_server.observed import Observed
from onebert_server.remote import wire
from onebert_server.settings import Settings

logger = logging.getLogger("onebert.http")


class Relayed:
    """Answers relayed requests by the `control` plane's app; every failure is a response."""

    def __init__(self, control: ASGIApp, form_of: FormOf, settings: Settings) -> None:
        self._control = control
        self._form_of = form_of
        self._bodies = Bodies(settings.max_body_bytes, settings.receive_timeout)

    async def answer(self, request: wire.Request) -> wire.Response:
        """Runs the app on a request to the end; only the front end knows whether the client has left."""
        scope, receive = self._scope(request), _whole(request.body)
        state, answer = scope["state"], _Answer()
        context: Context = state["context"]
        state[BODY] = body = Body(scope, receive, context, self._bodies)
        try:
            await self._control(scope, body.receive, answer.send)
        except Exception as error:
            answer = _Answer()
            if isinstance(error, REFUSALS):
                problem = problem_response(scope, error)
            else:
                log_failure(logger, f"request {context.request_id}", error)
                problem = internal_error(scope)
            await problem(scope, receive, answer.send)
        route = getattr(scope.get("route"), "path", "unmatched")
        return wire.Response(answer.status, answer.headers, b"".join(answer.parts), route, state.get("problem"))

    def _scope(self, request: wire.Request) -> Scope:
        now, principal = time.monotonic(), wire.principal(request.principal)
        observed = Observed()
        context = Context(
            principal, now + request.remaining, now, request.request_id, request.min_seq, observed=observed
        )
        state = {
            HEAD: Head(request.headers),
            FORM_OF: self._form_of,
            WHOLE: True,
            "request_id": request.request_id,
            "observed": observed,
            "principal": principal,
            "context": context,
        }
        return {**request.scope, "headers": request.headers, "state": state}


class _Answer:
    def __init__(self) -> None:
        self.status, self.headers = 500, list[tuple[bytes, bytes]]()
        self.parts: list[bytes] = []

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.status, self.headers = message["status"], [*message["headers"]]
        else:
            self.parts.append(message.get("body", b""))


def _whole(body: bytes) -> Receive:
    given = False

    async def receive() -> Message:
        nonlocal given
        if given:
            await asyncio.get_running_loop().create_future()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return receive
