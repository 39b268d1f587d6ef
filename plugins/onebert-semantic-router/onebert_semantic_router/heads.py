"""A task as the router's model: one head, whose kind determines the form of its answers."""

from typing import Literal

from onebert_encoder.answering.scores import own_activation
from onebert_server.versions.facts import Facts
from onebert_store.errors import UnsupportedTask

NAME = "classifier"
"""The name of every task's only head."""

MAX_TASKS = 64
"""Maximum tasks in one bundle."""

Kind = Literal["sequence", "scores", "token"]


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
