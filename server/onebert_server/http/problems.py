"""Maps every error to an `application/problem+json` response (RFC 9457), or to the client's own error form."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse
from starlette.routing import Match, Route
from starlette.types import ExceptionHandler, Scope

from onebert_server.http.decoding import BROKEN, BrokenRules
from onebert_server.http.schemas.common import LIST, OBJECT
from onebert_store.errors import GateFailed, InvalidInput, OneBertError, TooManyAttempts, Unauthorized
from onebert_store.file.strict_json import printable

# HTTP errors that inner code does not raise: status -> (code, title); docs/generate.py reads the explanations.
HTTP_ERRORS = {
    #: The body is not strict JSON, or the bytes are not one HTTP/1.1 request with one `Host`.
    400: ("bad-request", "Malformed request"),
    #: No such route.
    404: ("not-found", "No such route"),
    #: The route does not take this method.
    405: ("method-not-allowed", "Method not allowed"),
    #: The header fields or the body did not come in time; except for uploads the body must also come within
    #: `X-Request-Timeout`.
    408: ("request-timeout", "The request came too slowly"),
    413: ("too-large", "Too large"),
    #: Not `application/json`, or `application/octet-stream` for uploads; or a `Content-Encoding` other than gzip, gzip
    #: with a digest, or any on an upload.
    415: ("unsupported-media-type", "Unsupported media type"),
    #: A request to move or delete an alias had no condition.
    428: ("precondition-required", "Precondition required"),
    #: Target and header fields together, or the framing of a chunked body, exceed 32 KiB or 100 lines. The connection
    #: is closed.
    431: ("headers-too-large", "Header fields too large"),
    #: All connections are taken and have running requests.
    503: ("too-many-connections", "Too many connections"),
}
DETAILS = {404: "there is no such route; /docs lists those that there are"}
MAX_REASONS = 10
# Maximum characters of a field name that a response repeats.
MAX_NAME = 64

# pydantic's error type -> our wording of the rule; others have pydantic's.
REASONS = {"extra_forbidden": "unknown field", "missing": "is required", "list_type": "must be a list"}
REASONS |= {"string_type": "must be a text", "int_type": "must be a whole number"}
REASONS |= dict.fromkeys(("model_type", "model_attributes_type", "dict_type"), "must be an object")


@dataclass(frozen=True)
class Fault:
    """A refused request before it takes a client's error form; `reasons` have `path` and `reason` per broken rule."""

    status: int
    code: str
    title: str
    detail: str
    reasons: Sequence[Mapping[str, str]]
    request_id: str

    @property
    def sentence(self) -> str:
        if not self.reasons:
            return self.detail
        return "; ".join(f"{reason['path'].removeprefix('body.')}: {reason['reason']}" for reason in self.reasons)


ErrorForm = Callable[[Fault], tuple[int, Any]]
"""Converts a fault to a kind of client's error form: status and JSON body."""

FORM = "form"
"""Request state key: the ErrorForm of the client, if the body identifies it."""

FormOf = Callable[[str], ErrorForm | None]
"""Returns the ErrorForm of a path; None for problems."""

FORM_OF = "form_of"
"""Request state key: the request's FormOf."""


def problems_alone(path: str) -> None:
    """The FormOf of a process without other forms."""


Refusal = OneBertError | HTTPException | RequestValidationError
REFUSALS = (OneBertError, HTTPException, RequestValidationError)
"""The errors that become problems."""


def problem_response(scope: Scope, error: Refusal) -> JSONResponse:
    """The response for an error, with its header fields: Retry-After, WWW-Authenticate, Connection and Allow."""
    fault = fault_of(error, scope["state"]["request_id"])
    state, headers = scope["state"], _headers(error)
    state["problem"] = fault.code  # for the metrics
    # Looked up here, because only a refused request needs it.
    form: ErrorForm | None = state[FORM] if FORM in state else state[FORM_OF](scope["path"])
    if form is not None:
        status, body = form(fault)
        return JSONResponse(body, status, headers)
    body = {
        "type": f"urn:onebert:error:{fault.code}",
        "title": fault.title,
        "status": fault.status,
        "detail": fault.detail,
        "code": fault.code,
        "instance": f"urn:onebert:request:{fault.request_id}",
    }
    if fault.reasons:
        body["errors"] = fault.reasons
    if isinstance(error, GateFailed):
        body["report"] = error.report
    return JSONResponse(body, fault.status, headers, media_type="application/problem+json")


def internal_error(scope: Scope) -> JSONResponse:
    """The response for an unhandled exception; reveals only the request id."""
    return problem_response(scope, OneBertError("the server failed to answer; its log has the request's id"))


def install_handlers(app: FastAPI) -> None:
    """Registers handlers that turn typed, HTTP and validation errors into problems."""

    async def refuse_method(request: Request, error: Exception) -> JSONResponse:
        allowed = {
            method
            for route in app.routes
            if isinstance(route, Route) and route.matches(request.scope)[0] is not Match.NONE
            for method in route.methods or ()
        }
        # Starlette would list only the methods of the first route with this path.
        headers = {"Allow": ", ".join(sorted(allowed))}
        detail = f"the route does not take {printable(request.method, MAX_NAME)}"
        return problem_response(request.scope, HTTPException(405, detail, headers))

    async def answer(request: Request, error: Refusal) -> JSONResponse:
        return problem_response(request.scope, error)

    async def fail(request: Request, error: Exception) -> JSONResponse:
        return internal_error(request.scope)

    async def leave(request: Request, error: Exception) -> None:
        """Sends nothing to a client that has left."""

    app.add_exception_handler(405, refuse_method)
    app.add_exception_handler(Exception, fail)
    app.add_exception_handler(ClientDisconnect, cast(ExceptionHandler, leave))
    for kind in REFUSALS:
        app.add_exception_handler(kind, cast(ExceptionHandler, answer))


def fault_of(error: Refusal, request_id: str) -> Fault:
    """Converts an error to a Fault."""
    if isinstance(error, OneBertError):
        rules = error.rules if isinstance(error, BrokenRules) else ()
        reasons = [_worded(("body", *place), rule) for place, rule in rules[:MAX_REASONS]]
        return Fault(error.status, error.code, error.title, error.detail, reasons, request_id)
    if isinstance(error, HTTPException):
        code, title = HTTP_ERRORS.get(error.status_code, HTTP_ERRORS[400])
        return Fault(error.status_code, code, title, DETAILS.get(error.status_code, error.detail), (), request_id)
    reasons = [_reason(item) for item in error.errors()[:MAX_REASONS]]
    return Fault(422, InvalidInput.code, InvalidInput.title, BROKEN, reasons, request_id)


def _headers(error: Refusal) -> Mapping[str, str] | None:
    if isinstance(error, HTTPException):
        return error.headers
    headers = {}
    if isinstance(error, OneBertError) and error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    if isinstance(error, TooManyAttempts):
        headers["Connection"] = "close"
    return headers


def _reason(item: Mapping[str, Any]) -> dict[str, str]:
    """Path and rule of a violation that pydantic found; values are never repeated."""
    # Tags of unions are no places in the body.
    path = [part for part in item["loc"] if part not in (LIST, OBJECT)]
    if item["type"] == "value_error":
        return _worded(path, str(item["ctx"]["error"]))
    own_words = re.sub(r"^\w+ should", "must", item["msg"])
    return _worded(path, REASONS.get(item["type"], own_words))


def _worded(path: Sequence[str | int], rule: str) -> dict[str, str]:
    return {"path": ".".join(printable(str(part), MAX_NAME) for part in path), "reason": rule}
