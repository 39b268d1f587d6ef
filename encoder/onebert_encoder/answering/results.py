"""The types of answers: scores of labels, labeled words and entities, spans."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias, cast

import numpy as np

from onebert_encoder.answering.scores import Array

# Python sorts up to this many labels faster than NumPy starts; most tasks have fewer.
FEW = 32


@dataclass(frozen=True, eq=False)
class Prediction:
    """The answer of a task on whole texts.

    Attributes:
        scores: [labels] float64: probabilities, or a regression's values.
        labels: those over their thresholds, best first; None if the task has no thresholds.
        abstained: None if the task has no abstain rule.
        ranks: False for a regression, whose outputs keep their order.
        energy: high for texts unlike the training data; None unless requested.
    """

    names: Sequence[str]
    scores: Array
    best: int
    labels: list[str] | None = None
    abstained: bool | None = None
    ranks: bool = True
    energy: float | None = None

    @property
    def label(self) -> str:
        """The label with the highest score; a regression's first output."""
        return self.names[self.best]

    @property
    def score(self) -> float:
        return float(self.scores[self.best])

    def top(self, count: int | None = None) -> dict[str, float]:
        """The `count` best names with their scores; a regression returns all, in the task's order."""
        values = self.scores.tolist()
        if not self.ranks:
            return dict(zip(self.names, values, strict=True))
        if len(values) <= FEW:
            best = sorted(range(len(values)), key=values.__getitem__, reverse=True)[:count]
        else:
            best = np.argsort(-self.scores, kind="stable")[:count].tolist()
        return {self.names[i]: values[i] for i in best}


@dataclass(frozen=True)
class Labeled:
    """The slice `text[start:end]` (code points) with its label and the label's score."""

    start: int
    end: int
    label: str
    score: float


@dataclass(frozen=True)
class Labeling:
    """The words of a text, labeled by their first tokens; with BIO labels also entities, each with a mean score."""

    words: list[Labeled]
    entities: list[Labeled] | None


@dataclass(frozen=True)
class FoundSpan:
    """The slice `context[start:end]` (code points) that answers, with its probability."""

    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True)
class Extraction:
    """Spans of the context, best first; empty if it has no words. `abstained` is None without an abstain rule."""

    answers: list[FoundSpan]
    abstained: bool | None = None


Answer = Prediction | Labeling | Extraction


def fields_of(found: Answer, top_k: int | None) -> dict[str, Any]:
    """The answer as the fields of a reply, with its `top_k` best scores (None: all), which are sorted only here."""
    if not isinstance(found, Prediction):
        return vars(found)
    return {
        "label": found.label,
        "score": found.score,
        "scores": found.top(top_k),
        "labels": found.labels,
        "abstained": found.abstained,
        "energy": found.energy,
    }


ShortAnswer: TypeAlias = str | tuple[str, ...] | float | None
"""A label; the labels of a multi_label task, sorted; the number of a regression; None if the task abstains."""


def answer_of(task_type: str, answer: Any) -> ShortAnswer:
    """The part of an answer on a whole text (Prediction or result of a reply) in which two answers agree or differ."""
    if answer.abstained:
        return None
    if task_type == "regression":
        return cast(float, answer.score)
    return tuple(sorted(answer.labels or ())) if task_type == "multi_label" else cast(str, answer.label)


def slices_of(task_type: str, answer: Any) -> tuple[tuple[int | str, ...], ...] | None:
    """The same of a token task (start, end, label; entities, if its labels are BIO), sorted, or of a span task.

    `answer` is a Labeling or an Extraction, or a result of a reply. A span task's answer is (start, end) alone; None if
    it abstains.
    """
    if task_type == "token":
        spans = answer.words if answer.entities is None else answer.entities
        return tuple(sorted((span.start, span.end, span.label) for span in spans))
    return None if answer.abstained else tuple((span.start, span.end) for span in answer.answers[:1])
