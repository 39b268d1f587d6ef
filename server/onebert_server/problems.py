"""Errors on the wire: every answer that is not a success is one `application/problem+json` (RFC 9457) from here."""

import re
from collections.abc import Mapping
from typing import Any, cast

from fastapi import FastAPI
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import Scope

from onebert_store.errors import OneBertError, Unauthorized

# Errors of HTTP itself, which no inner code raises: status -> (code, title).
HTTP_ERRORS = {
    400: ("bad-request", "Malformed request"),
    404: ("not-found", "No such route"),
    405: ("method-not-allowed", "Method not allowed"),
    408: ("request-timeout", "The request came too slowly"),
    413: ("too-large", "Too large"),
    415: ("unsupported-media-type", "Unsupported media type"),
    428: ("precondition-required", "Precondition required"),
}
DETAILS = {404: "there is no such route", 405: "the route does not take this method"}
MAX_REASONS = 10


def problem_response(scope: Scope, error: OneBertError) -> JSONResponse:
    """The answer to a typed error; Retry-After and WWW-Authenticate come with those that have them."""
    headers = {}
    if error.retry_after is not None:
        headers["Retry-After"] = str(error.retry_after)
    if isinstance(error, Unauthorized):
        headers["WWW-Authenticate"] = "Bearer"
    return _problem(scope, error.status, error.code, error.title, error.detail, headers=headers)


def internal_error(scope: Scope) -> JSONResponse:
    """The answer to an exception nobody foresaw: it says nothing but the request's id."""
    return problem_response(scope, OneBertError("the server failed to answer; its log has the request's id"))


def install_handlers(app: FastAPI) -> None:
    """Makes typed errors, HTTP errors and validation errors of the app into problems."""
    app.add_exception_handler(OneBertError, _typed)
    app.add_exception_handler(HTTPException, _http)
    app.add_exception_handler(RequestValidationError, _validation)


async def _typed(request: Request, error: Exception) -> JSONResponse:
    return problem_response(request.scope, cast(OneBertError, error))


async def _http(request: Request, error: Exception) -> JSONResponse:
    error = cast(HTTPException, error)
    code, title = HTTP_ERRORS.get(error.status_code, HTTP_ERRORS[400])
    detail = DETAILS.get(error.status_code, error.detail)
    return _problem(request.scope, error.status_code, code, title, detail, headers=error.headers)


async def _validation(request: Request, error: Exception) -> JSONResponse:
    errors = [_reason(item) for item in cast(RequestValidationError, error).errors()[:MAX_REASONS]]
    detail = "the request breaks a rule; see errors"
    return _problem(request.scope, 422, "invalid-input", "Invalid input", detail, errors=errors)


def _reason(item: Mapping[str, Any]) -> dict[str, str]:
    """Path and rule of one violation; the input and the name of an unknown field stay out, since both are the user's.

    Parts in brackets are the tags of unions (schemas.py), not places in the body.
    """
    unknown = item["type"] == "extra_forbidden"
    path = [str(part) for part in item["loc"][: -1 if unknown else None]]
    reason = "unknown field" if unknown else item["msg"].removeprefix("Value error, ")
    return {"path": re.sub(r"\.?\[\w+\]", "", ".".join(path)), "reason": reason}


def _problem(
    scope: Scope,
    status: int,
    code: str,
    title: str,
    detail: str,
    headers: Mapping[str, str] | None = None,
    errors: list[dict[str, str]] | None = None,
) -> JSONResponse:
    scope["state"]["problem"] = code  # for the metrics
    body: dict[str, Any] = {
        "type": f"urn:onebert:error:{code}",
        "title": title,
        "status": status,
        "detail": detail,
        "code": code,
        "instance": f"urn:onebert:request:{scope['state']['request_id']}",
    }
    if errors:
        body["errors"] = errors
    return JSONResponse(body, status, headers, media_type="application/problem+json")
