"""A task as the router's model: one head, whose kind determines the form of its answers."""

from typing import Any, Literal

import numpy as np

from onebert_encoder.answering.scores import own_activation, thresholds_of
from onebert_server.limits import MAX_ITEMS
from onebert_server.versions.facts import Facts
from onebert_store.errors import UnsupportedTask
from onebert_store.file.decision import Reduction

API_VERSION = "2.3.0"
FAMILY = "task_heads"
"""The router's family of models with a head on an encoder."""

NAME = "classifier"
"""The name of every task's only head."""

MAX_TASKS = 64
"""Maximum tasks in one bundle."""

Kind = Literal["sequence", "scores", "token"]
# The router has no name for `mean`.
_REDUCTIONS: dict[Reduction, str] = {"max": "max", "union": "span_union"}


def kind_of(facts: Facts) -> Kind | None:
    """The kind of the task's head: probabilities, independent scores or spans; None for other tasks."""
    if facts.task_type == "token":
        return "token"
    if facts.task_type in ("single_label", "multi_label"):
        kinds: dict[str, Kind] = {"softmax": "sequence", "sigmoid": "scores"}
        return kinds.get(own_activation(facts))
    return None


def require_kind(facts: Facts) -> Kind:
    """The kind of the task's head."""
    kind = kind_of(facts)
    if kind is None:
        raise UnsupportedTask(f"the answers of {facts.ref}, a {facts.task_type} task, are no probabilities of labels")
    return kind


def described(facts: Facts) -> dict[str, Any]:
    """The contract's fields of a model, beyond the fields for OpenAI's clients."""
    kind = kind_of(facts)
    return {
        "family": FAMILY,
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
