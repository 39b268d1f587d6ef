"""`GET /health` and `/health/live` for all clients: whether this server, or one task, is ready.

Replies and errors have the form of the Semantic Router's runtime, which clients of TEI and FMS detectors take, too.
"""

from collections.abc import Mapping
from typing import Any

from onebert_server.answering.gateway import BARE
from onebert_server.facades.facade import Facade, Listing, ReadRequest, json_reply
from onebert_server.http.formats import Reply
from onebert_server.http.problems import Fault
from onebert_store.errors import VersionUnavailable

API_VERSION = "2.3.0"

# Problem code -> status and the runtime's code; for other codes the status determines the code.
_CODES: Mapping[str, tuple[int, str]] = {
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


async def health(request: ReadRequest) -> Reply:
    """Ready; where the path names a task or a base, that, too."""
    request.runtime.check_ready()
    model = None
    # From the path only: without a task prefix the path needs no key.
    if "task" in request.parameters and (base := await request.base()) is not None:
        model = base.task.removeprefix(BARE)
    elif "task" in request.parameters:
        version, model = await request.version(), request.task()
        if version.state.value == "unavailable":
            raise VersionUnavailable(f"{model} is registered, and could not be loaded: {version.reason}")
    return json_reply({"api_version": API_VERSION, "status": "ready", "reason": None, "model": model})


async def live(request: ReadRequest) -> Reply:
    """The process is alive; a task that the path names is one that there is."""
    if "task" in request.parameters and await request.base() is None:
        await request.version()
    return json_reply({"status": "alive", "api_version": API_VERSION})


def coded(fault: Fault) -> tuple[int, Any]:
    """The error form of the Semantic Router's runtime."""
    status, code = _CODES.get(
        fault.code, (fault.status, "internal_error" if fault.status >= 500 else "invalid_request")
    )
    return status, {"error": {"code": code, "message": fault.sentence}}


def worded(fault: Fault) -> tuple[int, Any]:
    """The error form of health requests: the runtime's, with the reason."""
    status, body = coded(fault)
    state = "loading" if fault.code == "starting" else "failed"
    return status, {"api_version": API_VERSION, "status": state, "reason": fault.sentence, **body}


FACADE = Facade("Health", worded, [], [Listing("/health", health), Listing("/health/live", live)])
