"""The control plane of the process with the engine, as front ends ask it: their pipelines have checked the requests."""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import Any

from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope

from onebert_server.access.context import Context
from onebert_server.http.body import BODY, Bodies, Body
from onebert_server.http.head import HEAD, Head
from onebert_server.http.problems import FORM_OF, REFUSALS, FormOf, internal_error, problem_response
from onebert_server.logs import log_failure
from onebert_server.observed import Observed
from onebert_server.remote import wire
from onebert_server.settings import Settings

logger = logging.getLogger("onebert.http")

Respond = Callable[[wire.Relayed], Awaitable[None]]


class Relayed:
    """Answers relayed requests by the `control` plane's app; every failure before the response is one."""

    def __init__(self, control: ASGIApp, form_of: FormOf, settings: Settings) -> None:
        self._control = control
        self._form_of = form_of
        self._bodies = Bodies(settings.max_body_bytes)

    async def answer(self, request: wire.Request, receive: Receive, respond: Respond) -> None:
        """Runs the app on a request; `receive` gives the body's messages, `respond` takes the response's."""
        scope = self._scope(request)
        state, sending = scope["state"], _Sending(scope, receive, respond)
        context: Context = state["context"]
        state[BODY] = body = Body(scope, sending.receive, context, self._bodies)
        try:
            await self._control(scope, body.receive, sending.send)
            return
        except ClientDisconnect:
            return
        except REFUSALS as error:
            problem = problem_response(scope, error)
        except Exception as error:
            log_failure(logger, f"request {context.request_id}", error)
            problem = internal_error(scope)
        if sending.begun:
            logger.error("request %s failed after the head of its response, which can only be cut", context.request_id)
        else:
            await problem(scope, receive, sending.send)

    async def whole(self, request: wire.Request, body: bytes) -> tuple[wire.Matched, wire.Response, bytes]:
        """Answers a request whose body has come whole, for transports that do not stream; see Transport."""
        waiting: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]
        replies: list[Any] = []

        async def receive() -> Message:
            # Only the front end knows whether the client has left.
            return waiting.pop() if waiting else await asyncio.get_running_loop().create_future()

        async def respond(reply: wire.Relayed) -> None:
            replies.append(reply)

        await self.answer(request, receive, respond)
        matched, response, *parts = replies
        return matched, response, b"".join(part.body for part in parts)

    def _scope(self, request: wire.Request) -> Scope:
        now, principal, observed = time.monotonic(), request.principal, Observed()
        context = Context(
            principal, now + request.remaining, now, request.request_id, request.min_seq, observed=observed
        )
        state = {
            HEAD: Head(request.headers),
            FORM_OF: self._form_of,
            "request_id": request.request_id,
            "observed": observed,
            "principal": principal,
            "context": context,
        }
        return {**request.scope, "headers": request.headers, "state": state}


class _Sending:
    """An app's `receive` and `send`, which turn its messages into replies."""

    def __init__(self, scope: Scope, receive: Receive, respond: Respond) -> None:
        self._scope, self._receive, self._respond = scope, receive, respond
        self._matched = self.begun = False

    async def receive(self) -> Message:
        await self._match()
        return await self._receive()

    async def send(self, message: Message) -> None:
        if message["type"] != "http.response.start":
            await self._respond(wire.Part(message.get("body", b""), message.get("more_body", False)))
            return
        self.begun = True
        await self._match()
        problem = self._scope["state"].get("problem")
        await self._respond(wire.Response(message["status"], [*message["headers"]], problem))

    async def _match(self) -> None:
        if not self._matched:
            self._matched = True
            await self._respond(wire.Matched(getattr(self._scope.get("route"), "path", "unmatched")))
