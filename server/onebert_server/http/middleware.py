"""Middleware around every request: its id, metrics, 500 responses, its context, and limits on the body."""

import asyncio
import logging
import random
import re
import time

from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from onebert_server.access.context import Context
from onebert_server.edge import Listening
from onebert_server.fairness.shares import Permits
from onebert_server.http.problems import FORM_OF, FormOf, internal_error, problem_response, problems_alone
from onebert_server.http.refusals import REFUSAL, WHOLE
from onebert_server.limits import MAX_COMING_BYTES, MAX_REQUEST_TIMEOUT
from onebert_server.logs import log_failure
from onebert_server.telemetry.observed import Ended, Observed
from onebert_store.errors import InvalidInput, OneBertError

logger = logging.getLogger("onebert.http")

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
TIMEOUT_HEADER = "X-Request-Timeout"
SEQ_HEADER, MIN_SEQ_HEADER = "OneBERT-Seq", "OneBERT-Min-Seq"
_TIMEOUT, _MIN_SEQ = (name.lower().encode() for name in (TIMEOUT_HEADER, MIN_SEQ_HEADER))
# Floating-point numbers as languages print them: up to 17 significant digits, and exponents for small numbers.
SECONDS = re.compile(r"[0-9]{1,9}(\.[0-9]{1,32})?([eE][+-]?[0-9]{1,3})?")
METHODS = frozenset({"GET", "PUT", "POST", "DELETE", "HEAD", "OPTIONS", "PATCH"})


BODIES = "bodies"
"""Request state key: the Permits for the bytes of incomplete bodies."""


class RequestMiddleware:
    """Gives each request an id, counts it, and replies 500 after an unhandled exception."""

    def __init__(self, app: ASGIApp, edge: Listening, form_of: FormOf = problems_alone) -> None:
        self.app = app
        self.edge = edge
        self.form_of = form_of
        self.metrics = edge.metrics
        self.telemetry = edge.telemetry

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        request_id = _request_id(_field(scope, b"x-request-id"))
        state, observed = scope.setdefault("state", {}), self.telemetry.begin(scope["path"], scope["headers"])
        state["request_id"], state["observed"], state[FORM_OF] = request_id, observed, self.form_of
        status = 0

        async def tagged(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message["headers"], (b"x-request-id", request_id.encode())]
                if timing := observed.server_timing:
                    message["headers"].append((b"server-timing", timing.encode()))
                if self.edge.draining:
                    MutableHeaders(scope=message)["Connection"] = "close"
            await send(message)

        started = time.perf_counter()
        self.metrics.request_began()
        try:
            await self.app(scope, receive, tagged)
        except ClientDisconnect:
            status = 499  # for the metrics only: the client has left; nginx uses this number, too
        except Exception as error:
            log_failure(logger, f"request {request_id}", error)
            if status:
                raise  # the response has begun, so the server can only cut the connection
            await internal_error(scope)(scope, receive, tagged)
        finally:
            seconds = time.perf_counter() - started
            ended = _ended(scope, status, seconds, observed)
            self.metrics.request_ended(ended)
            principal = state.get("principal")
            self.telemetry.end(ended, request_id, None if principal is None else principal.name, observed)


class ContextMiddleware:
    """Gives each request its context. The deadline counts from here, so a slow body uses up the time, too."""

    def __init__(self, app: ASGIApp, timeout: float) -> None:
        self.app = app
        self.timeout = timeout

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            state, now = scope["state"], time.monotonic()
            try:
                seconds, min_seq = _asked(scope["headers"], self.timeout)
            except OneBertError as error:
                await problem_response(scope, error)(scope, receive, send)
                return
            state["context"] = Context(
                state["principal"], now + seconds, now, state["request_id"], min_seq, state["observed"]
            )
        await self.app(scope, receive, send)


class BodyLimitMiddleware:
    """Limits the size of a body, the bytes of all incomplete bodies, and the time from the first read to the end.

    The state's `max_body_bytes` is the size limit and `body_deadline` the latest end; the upload route raises both.
    Errors are HTTPException, because FastAPI lets no other error through while it reads a body.
    """

    def __init__(self, app: ASGIApp, max_bytes: int, timeout: float) -> None:
        self.app = app
        self.max_bytes = max_bytes
        self.timeout = timeout
        self.bodies = Permits(
            max(MAX_COMING_BYTES, 4 * max_bytes), "as many bytes of bodies wait for their ends as the server holds"
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        state = scope["state"]
        state["max_body_bytes"], state["body_deadline"] = self.max_bytes, state["context"].deadline
        state[BODIES] = self.bodies
        length = _field(scope, b"content-length")
        declared = int(length) if length.isdigit() else 0
        deadline: float | None = None
        counted, complete = 0, False

        async def limited() -> Message:
            nonlocal deadline, counted, complete
            if complete:
                return await receive()
            refuse_over(max(declared, counted))
            if state.get(WHOLE):
                message = await receive()  # returns at once
            else:
                if deadline is None:
                    seconds = min(self.timeout, state["body_deadline"] - time.monotonic())
                    deadline = asyncio.get_running_loop().time() + seconds
                try:
                    async with asyncio.timeout_at(deadline):
                        message = await receive()
                except TimeoutError:
                    raise HTTPException(408, "the body did not come in time", {"Connection": "close"}) from None
            if refusal := message.get(REFUSAL):
                status, detail = refusal
                raise HTTPException(status, detail, {"Connection": "close"})
            counted += len(message.get("body", b""))
            refuse_over(counted)
            complete = not message.get("more_body", False)
            return message

        def refuse_over(size: int) -> None:
            if size > state["max_body_bytes"]:
                raise HTTPException(413, f"the body is over {state['max_body_bytes']} bytes", {"Connection": "close"})

        await self.app(scope, limited, send)


def _field(scope: Scope, name: bytes) -> str:
    for one, value in scope["headers"]:
        if one == name:
            return str(value, "latin-1")
    return ""


def _request_id(given: str) -> str:
    """The caller's id if it is safe to log and to return, else a new one."""
    # Not a secret, so no `secrets`: its system call would release Python's lock to other threads.
    return given if REQUEST_ID.fullmatch(given) else f"{random.getrandbits(128):032x}"


def _asked(headers: list[tuple[bytes, bytes]], timeout: float) -> tuple[float, int]:
    timeouts, seqs = [], []
    # A single pass over the raw fields, since every question comes through here.
    for name, value in headers:
        if name == _TIMEOUT:
            timeouts.append(value.decode("latin-1"))
        elif name == _MIN_SEQ:
            seqs.append(value.decode("latin-1"))
    return _timeout(timeouts, timeout), _min_seq(seqs)


def _timeout(given: list[str], default: float) -> float:
    if not given:
        return default
    seconds = float(given[0]) if len(given) == 1 and SECONDS.fullmatch(given[0]) else 0.0
    if not 0 < seconds <= MAX_REQUEST_TIMEOUT:
        raise InvalidInput(f"{TIMEOUT_HEADER} is a number of seconds above 0 and at most {MAX_REQUEST_TIMEOUT}")
    return seconds


def _min_seq(given: list[str]) -> int:
    if not given:
        return 0
    if len(given) != 1 or not re.fullmatch(r"[0-9]{1,18}", given[0]):
        raise InvalidInput(f"{MIN_SEQ_HEADER} is the number that {SEQ_HEADER} gave")
    return int(given[0])


def _ended(scope: Scope, status: int, seconds: float, observed: Observed) -> Ended:
    answers = observed.answers if observed.answers and status < 400 else ()
    trace_id = observed.span.trace_id if observed.span and observed.span.sampled else None
    return Ended(_method(scope), _route(scope), status, seconds, scope["state"].get("problem"), answers, trace_id)


def _method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in METHODS else "other"


def _route(scope: Scope) -> str:
    """The route's template, so that task names never become label values."""
    return getattr(scope.get("route"), "path", "unmatched")
