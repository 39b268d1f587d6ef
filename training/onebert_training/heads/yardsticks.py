"""Yardsticks: scores of a task without any training, which a trained delta should beat."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from onebert_training.heads.exact import ExactHead
from onebert_training.heads.seen import Answers, Seen
from onebert_training.tasks.objective import Objective

Scores = Mapping[str, float]


@dataclass(frozen=True)
class Yardstick:
    """A cheap way to answer: its name for the user, and its metrics by split."""

    name: str
    scores: Mapping[str, Scores]


@dataclass(frozen=True)
class Yardsticks:
    """The cheap ways to answer a task.

    Attributes:
        constant: the best constant answer, such as the commonest label; None if the task type has no constants.
        exact: the exact head on the frozen base; None if the task type has no exact head.
        answers: the head's answers on the validation split, or on the folds without one.
        rows: number of training rows that the head is fitted on.
        folds: number of folds of the training rows if there is no validation split, else 0.
    """

    constant: Yardstick | None
    exact: Yardstick | None
    head: ExactHead | None
    answers: Answers | None
    rows: int
    seconds: float
    folds: int

    def lines(self, metric: str) -> Iterator[str]:
        on_rows, in_folds = ("on the training rows", f"in {self.folds} folds") if self.folds else ("on validation",) * 2
        for one, where in ((self.constant, on_rows), (self.exact, in_folds)):
            if one is not None:
                yield f"yardstick: {one.name}: {metric} {one.scores['validation'][metric]:.4f} {where}"

    def facts(self) -> dict[str, Any]:
        constant = self.constant and {"answer": self.constant.name, **self.constant.scores}
        exact = self.exact and self.head and {"strength": self.head.strength, "rows": self.rows, **self.exact.scores}
        return {"constant": constant, "head": exact, "seconds": round(self.seconds, 3)}

    def provenance(self, metric: str) -> dict[str, dict[str, float]]:
        named = {"constant": self.constant, "head": self.exact}
        found = {name: one.scores for name, one in named.items() if one is not None}
        return {name: {split: scores[metric] for split, scores in each.items()} for name, each in found.items()}


def constant_yardstick(
    objective: Objective, train: Seen, measured: Mapping[str, Seen], metric: str
) -> Yardstick | None:
    """The best constant answer by a metric of the training rows, measured on other splits."""
    if (found := objective.best_constant(train.examples, train.tokens, metric)) is None:
        return None
    constant, _ = found

    def scores(seen: Seen) -> Scores:
        always = objective.always(constant, seen.tokens, len(seen.examples))
        return objective.evaluate(seen.examples, seen.tokens, always)

    return Yardstick(f"always answering {constant.answer}", {split: scores(seen) for split, seen in measured.items()})
