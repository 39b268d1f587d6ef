"""The score that a trainer recorded of a version."""

from collections.abc import Mapping
from sys import intern
from typing import Any, NamedTuple


class Measured(NamedTuple):
    """A score by its metric, and the rows that it was measured on."""

    metric: str
    value: float
    where: str


def score_of(training: Any) -> Measured | None:
    """Returns the recorded score, of the test split if there is one; None without any.

    A file may be written by hand, so the type of everything that it records about training is checked.
    """
    facts: Mapping[str, Any] = training if isinstance(training, Mapping) else {}
    metric = facts.get("metric")
    for split in ("test", "validation"):
        scores = facts.get(split)
        if isinstance(metric, str) and isinstance(scores, Mapping) and isinstance(scores.get(metric), int | float):
            # Interned, because many versions share the names.
            return Measured(intern(metric), float(scores[metric]), intern(measured_on(facts, split)))
    return None


def measured_on(training: Mapping[str, Any], split: str) -> str:
    """Returns which rows a split's scores were measured on: `k folds` for validation scores of cross-validation."""
    folds = training.get("folds")
    return f"{folds} folds" if split == "validation" and isinstance(folds, int) and folds > 0 else split
