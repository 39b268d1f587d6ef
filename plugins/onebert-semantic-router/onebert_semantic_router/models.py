"""The router's fields in the list of models (`/v1/models`): a task's head, limits, and whether it is ready."""

from typing import TYPE_CHECKING, Any

import numpy as np

from onebert_encoder.answering.scores import thresholds_of
from onebert_semantic_router.heads import MAX_TASKS, NAME, Kind, kind_of
from onebert_server.facades.clients.health import API_VERSION
from onebert_server.facades.facade import ReadRequest
from onebert_server.limits import MAX_ITEMS
from onebert_server.versions.facts import Facts
from onebert_store.file.decision import Reduction

if TYPE_CHECKING:
    # Front ends import this module, and never list models.
    from onebert_server.versions.version import Version

FAMILY = "task_heads"
"""The router's family of models with a head on an encoder."""

# The router has no name for `mean`.
_REDUCTIONS: dict[Reduction, str] = {"max": "max", "union": "span_union"}


def of_list(request: ReadRequest) -> dict[str, Any]:
    """The fields of the list itself."""
    limits = {"max_bundle_tasks": MAX_TASKS, "max_request_bytes": request.runtime.settings.max_body_bytes}
    return {"api_version": API_VERSION, "limits": limits}


def of_model(version: "Version") -> dict[str, Any]:
    """The fields of one model; a version that cannot be loaded is not ready."""
    ready = version.state.value != "unavailable" and version.known_facts is not None
    return {
        "family": FAMILY,
        "surfaces": [],
        "heads": [],
        **(_described(version.known_facts) if version.known_facts is not None else {}),
        "ready": ready,
        "status": "ready" if ready else "failed",
        "reason": version.reason,
        "golden": {"status": "matched" if version.proved else "pending"},
    }


def _described(facts: Facts) -> dict[str, Any]:
    kind = kind_of(facts)
    return {
        "surfaces": [] if kind is None else ["classify"],
        "heads": [] if kind is None else [_head(kind, facts)],
        "limits": {"max_input_tokens": facts.max_length, "max_inputs": MAX_ITEMS},
        "revision": str(facts.version),
        "model_sha256": facts.digest.removeprefix("sha256:"),
        "profile": "exact",
        "engine": "onebert",
    }


def _head(kind: Kind, facts: Facts) -> dict[str, Any]:
    window = facts.decision.window if facts.decision is not None else None
    return {
        "name": NAME,
        "kind": kind,
        "labels": facts.labels,
        "inputs": ["text"] if kind == "token" else ["text", "pair"],
        "default_threshold": None,
        "thresholds": _thresholds(facts) if kind == "scores" else None,
        "overflow": "truncate" if window is None else "window",
        "window": None if window is None else {"tokens": window.tokens, "overlap": window.overlap},
        "reduction": None if window is None else _REDUCTIONS.get(window.reduction),
    }


def _thresholds(facts: Facts) -> list[float] | None:
    thresholds = thresholds_of(facts)
    return None if thresholds is None or not np.isfinite(thresholds).all() else thresholds.tolist()
