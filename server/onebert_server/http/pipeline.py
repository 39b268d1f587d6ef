"""The way of every request: id, metrics, key, deadline and body limits, then its data route or the control plane."""

import logging
import random
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import lru_cache, partial
from typing import Any

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.routing import compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onebert_server.access.context import Context
from onebert_server.answering.edge import Edge, Listening
from onebert_server.http.auth import ApiKeys
from onebert_server.http.body import BODY, Bodies, Body
from onebert_server.http.cancel_scope import CancelScope
from onebert_server.http.connection.refusals import REFUSAL
from onebert_server.http.formats import JSON, Format, Formats
from onebert_server.http.head import HEAD, Field, Head
from onebert_server.http.problems import FORM_OF, REFUSALS, FormOf, internal_error, problem_response, problems_alone
from onebert_server.http.replies import send_whole
from onebert_server.http.strict import require_media_type
from onebert_server.limits import MAX_REQUEST_TIMEOUT
from onebert_server.logs import log_failure
from onebert_server.observed import PARSE, FinishedRequest, Observed
from onebert_server.settings import Settings
from onebert_store.errors import InvalidInput
from onebert_store.registry.names import parse_ref

logger = logging.getLogger("onebert.http")

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
TIMEOUT_HEADER = "X-Request-Timeout"
SEQ_HEADER, MIN_SEQ_HEADER = "OneBERT-Seq", "OneBERT-Min-Seq"
_TIMEOUT, _MIN_SEQ = (name.lower().encode() for name in (TIMEOUT_HEADER, MIN_SEQ_HEADER))
_REQUEST_ID = b"x-request-id"
# Floating-point numbers as languages print them: up to 17 significant digits, and exponents for small numbers.
SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,32})?([eE][+-]?[0-9]{1,3})?")
_SEQ = re.compile(r"[0-9]{1,18}")
METHODS = frozenset({"GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH"})

# Status for the metrics of a request whose client has left; nginx uses this number, too.
LEFT = 499


class Pipeline:
    """Gives each request an id, counts it, and replies 500 after an unhandled exception of `inner`."""

    def __init__(self, edge: Listening, inner: ASGIApp, form_of: FormOf = problems_alone) -> None:
        self._edge = edge
        self._inner = inner
        self._form_of = form_of

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state, edge, started = scope.setdefault("state", {}), self._edge, time.perf_counter()
        # The protocol has read the head; another ASGI server has not.
        head = state.get(HEAD) or Head(scope["headers"])
        observed = edge.telemetry.begin(scope["path"], head.raw)
        request_id, observed.answers_id = _request_ids(head)
        state |= {HEAD: head, FORM_OF: self._form_of, "request_id": request_id, "observed": observed}
        answer = _Answer(send, edge, request_id, observed)
        try:
            if REFUSAL in state:
                await _unreadable(scope)(scope, receive, answer.send)
            else:
                await self._inner(scope, receive, answer.send)
            answer.status = answer.status or LEFT
        except ClientDisconnect:
            answer.status = LEFT
        except Exception as error:
            log_failure(logger, f"request {request_id}", error)
            # If the response has begun, the server can only cut the connection; uvicorn would log the error's text.
            if not answer.status:
                await internal_error(scope)(scope, receive, answer.send)
        finally:
            ended = _ended(scope, answer.status, time.perf_counter() - started, observed)
            principal = state.get("principal")
            edge.telemetry.end(ended, request_id, None if principal is None else principal.name, observed)
            # A body refers to its scope by `receive`: without its state, nothing waits for the garbage collector.
            state.clear()


class _Answer:
    """The response on its way out; its head gets the request's id and timing."""

    __slots__ = ("_edge", "_observed", "_request_id", "_send", "status")

    def __init__(self, send: Send, edge: Listening, request_id: str, observed: Observed) -> None:
        self._send, self._edge, self._request_id, self._observed = send, edge, request_id, observed
        self.status = 0

    async def send(self, message: Message) -> None:
        """Sends a message of ASGI."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            # A refusal has no answers, and its body names the request's own id.
            keeps = self._observed.any_kept and self.status < 400
            shown = self._observed.answers_id if keeps else self._request_id
            message["headers"] = [*message["headers"], (b"x-request-id", shown.encode())]
            if timing := self._observed.server_timing:
                message["headers"].append((b"server-timing", timing.encode()))
            if self._edge.draining:
                MutableHeaders(scope=message)["Connection"] = "close"
        await self._send(message)


class Dispatch:
    """Checks key and headers, sets the request's context, and bounds its body.

    Answers questions by the format of their route; every other request goes to the `control` plane.
    """

    def __init__(self, edge: Edge, formats: Formats, control: ASGIApp, keys: ApiKeys, settings: Settings) -> None:
        self._edge = edge
        self._formats = formats
        self._control = control
        self._keys = keys
        self._timeout = settings.request_timeout
        self._bodies = Bodies(settings.max_body_bytes, processes=settings.front_ends or 1)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        state, edge = scope["state"], self._edge
        try:
            match = self._formats.match(scope)
            principal = None if match is None else self._keys.known(scope)
            if principal is None:
                await self._keys.admit(scope)
            else:
                state["principal"] = principal
            state["context"] = context = self._context(state)
            if match is None:
                state[BODY] = body = Body(scope, receive, context, self._bodies)
                await self._control(scope, body.receive, send)
                return
            form, parameters = match
            scope["route"] = form
            # First, so that a refusal under overload is cheap.
            edge.answerer.refuse_early(context)
            decoded = await self._decoded(form, scope, receive)
            if (milliseconds := getattr(decoded, "timeout_ms", None)) is not None:
                context = context.within(milliseconds)
            with CancelScope(context, receive):
                content, extra, media_type, status = await form.reply(parameters, decoded, context, edge)
            fields: list[Field] = [(b"content-length", b"%d" % len(content)), (b"content-type", media_type.encode())]
            for name, value in extra.items():
                fields.append((name.encode(), value.encode()))
            await send_whole(send, status, fields, content, edge.untaken, context.principal.name)
        except REFUSALS as error:
            await problem_response(scope, error)(scope, receive, send)

    def _context(self, state: Mapping[str, Any]) -> Context:
        now, head, min_seq = time.monotonic(), state[HEAD], 0
        seconds = seconds_of(head, self._timeout) if _TIMEOUT in head.fields else self._timeout
        if _MIN_SEQ in head.fields:
            min_seq = _seq(head.all(_MIN_SEQ))
        who = state["principal"], now + seconds, now, state["request_id"]
        return Context(*who, min_seq, state["observed"], header=head.value)

    async def _decoded(self, form: Format, scope: Scope, receive: Receive) -> Any:
        state = scope["state"]
        context: Context = state["context"]
        state[BODY] = body = Body(scope, receive, context, self._bodies)
        require_media_type(scope, JSON, form.accepts)
        content = await body.read()
        began = time.monotonic()
        decoded = await body.decoded(content, partial(form.read, scope=scope))
        context.observed.phases([(PARSE, began, time.monotonic())])
        return decoded


def _unreadable(scope: Scope) -> ASGIApp:
    status, detail = scope["state"][REFUSAL]
    headers = {"Connection": "close"} | ({"Retry-After": "1"} if status == 503 else {})
    return problem_response(scope, HTTPException(status, detail, headers))


def _request_ids(head: Head) -> tuple[str, str]:
    """The caller's id if it is safe to log and to return, else a new one; and a unique one for kept answers."""
    # Not a secret, so no `secrets`: its system call would release Python's lock to other threads.
    new = f"{random.getrandbits(128):032x}"
    if _REQUEST_ID not in head.fields:
        return new, new
    client_id = head.first(_REQUEST_ID)
    # A caller may use its id again.
    return (client_id, f"{client_id}.{new[:12]}") if REQUEST_ID.fullmatch(client_id) else (new, new)


def seconds_of(head: Head, default: float) -> float:
    """The seconds in which a client wants its answer; raises InvalidInput."""
    if not (values := head.all(_TIMEOUT)):
        return default
    seconds = float(values[0]) if len(values) == 1 and SECONDS.fullmatch(values[0]) else 0.0
    if not 0 < seconds <= MAX_REQUEST_TIMEOUT:
        raise InvalidInput(f"{TIMEOUT_HEADER} is a number of seconds above 0 and at most {MAX_REQUEST_TIMEOUT}")
    return seconds


def _seq(values: Sequence[str]) -> int:
    if len(values) != 1 or not _SEQ.fullmatch(values[0]):
        raise InvalidInput(f"{MIN_SEQ_HEADER} is the number that {SEQ_HEADER} gave")
    return int(values[0])


def _ended(scope: Scope, status: int, seconds: float, observed: Observed) -> FinishedRequest:
    answers = observed.answers if observed.answers and status < 400 else ()
    trace_id = observed.span.trace_id if observed.span and observed.span.sampled else None
    method = scope["method"] if scope["method"] in METHODS else "other"
    # The route's template, so that task names never become label values.
    route = getattr(scope.get("route"), "path", "unmatched")
    # Answers name their tasks.
    task = None if answers else _task_of(route, scope["path"])
    return FinishedRequest(method, route, status, seconds, scope["state"].get("problem"), answers, trace_id, task)


def _task_of(route: str, path: str) -> str | None:
    """The task that a path names; also of a route that another process has matched."""
    if not (match := _pattern_of(route).match(path)):
        return None
    named = match.groupdict()
    with suppress(InvalidInput):
        return parse_ref(named.get("task") or named.get("model") or "").task
    return None


@lru_cache
def _pattern_of(route: str) -> re.Pattern[str]:
    return compile_path(route)[0]
