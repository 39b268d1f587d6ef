"""The error form of the router's model runtime."""

from collections.abc import Mapping
from typing import Any

from onebert_server.facades.clients.semantic_router.heads import API_VERSION
from onebert_server.http.problems import Fault

# Problem code -> status and router code; for other codes the status determines the code.
_WORDS: Mapping[str, tuple[int, str]] = {
    "invalid-input": (400, "invalid_request"),
    "too-large": (413, "request_too_large"),
    "unsupported-task": (422, "unsupported_surface"),
    "deadline-exceeded": (504, "overloaded"),
    **dict.fromkeys(("task-not-found", "version-not-found", "alias-not-found"), (404, "model_not_found")),
    **dict.fromkeys(("queue-full", "over-share", "over-quota", "too-many-attempts"), (429, "overloaded")),
    **dict.fromkeys(
        ("version-unavailable", "starting", "shutting-down", "unhealthy", "storage-unavailable"), (503, "not_ready")
    ),
}


def worded(fault: Fault) -> tuple[int, Any]:
    """The error form of the contract."""
    status, code = _WORDS.get(
        fault.code, (fault.status, "internal_error" if fault.status >= 500 else "invalid_request")
    )
    return status, {"error": {"code": code, "message": fault.sentence}}


def health_worded(fault: Fault) -> tuple[int, Any]:
    """The error form of health requests, with the reason."""
    status, body = worded(fault)
    state = "loading" if fault.code == "starting" else "failed"
    return status, {"api_version": API_VERSION, "status": state, "reason": fault.sentence, **body}
