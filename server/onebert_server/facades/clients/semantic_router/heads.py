"""What a task is to the router: a model with one head, whose kind says how its answers look."""

from typing import Any, Literal

import numpy as np

from onebert_encoder.answering.scores import own_activation, thresholds_of
from onebert_server.limits import MAX_ITEMS
from onebert_server.versions.facts import Facts
from onebert_store.errors import UnsupportedTask
from onebert_store.file.decision import Reduction

API_VERSION = "2.3.0"
FAMILY = "task_heads"
"""What the router calls models with a head on an encoder."""

NAME = "classifier"
"""Of the one head that every task has."""

MAX_TASKS = 64
"""Of one bundle."""

Kind = Literal["sequence", "scores", "token"]
# A mean has no word there.
_REDUCTIONS: dict[Reduction, str] = {"max": "max", "union": "span_union"}


def kind_of(facts: Facts) -> Kind | None:
    """The kind of the task's head: probabilities, independent scores, or spans; None where it has none of these."""
    if facts.task_type == "token":
        return "token"
    if facts.task_type in ("single_label", "multi_label"):
        kinds: dict[str, Kind] = {"softmax": "sequence", "sigmoid": "scores"}
        return kinds.get(own_activation(facts))
    return None


def require_kind(facts: Facts) -> Kind:
    """The kind of the task's head.

    Raises:
        UnsupportedTask: the router has no form for its answers.
    """
    kind = kind_of(facts)
    if kind is None:
        raise UnsupportedTask(f"the answers of {facts.ref}, a {facts.task_type} task, are no probabilities of labels")
    return kind


def described(facts: Facts) -> dict[str, Any]:
    """What the contract says of a model beside what OpenAI's clients read."""
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
    """Of each label; None where one of them has none."""
    thresholds = thresholds_of(facts)
    return None if thresholds is None or not np.isfinite(thresholds).all() else thresholds.tolist()
