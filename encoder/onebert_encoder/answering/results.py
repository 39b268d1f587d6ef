"""The types of answers: scores of labels, labeled words and entities, spans."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np

from onebert_store.comparison import ShortAnswer

# If an answer has up to this many labels, they are sorted with the other answers' labels; of more, few may be shown.
FEW = 32


class Prediction(NamedTuple):
    """The answer of a task on whole texts.

    Attributes:
        scores: of each label: probabilities, or a regression's values.
        labels: those over their thresholds, best first; None if the task has no thresholds.
        abstained: None if the task has no abstain rule.
        ranks: False for a regression, whose outputs keep their order.
        energy: high for texts unlike the training data; None unless requested.
        order: the places of all names, best first; None if there are many, which `top` sorts when they are shown.
    """

    names: Sequence[str]
    scores: list[float]
    best: int
    labels: list[str] | None = None
    abstained: bool | None = None
    ranks: bool = True
    energy: float | None = None
    order: Sequence[int] | None = None

    @property
    def label(self) -> str:
        """The label with the highest score; a regression's first output."""
        return self.names[self.best]

    @property
    def score(self) -> float:
        return self.scores[self.best]

    def top(self, count: int | None = None) -> dict[str, float]:
        """The `count` best names with their scores; a regression returns all, in the task's order."""
        names, scores = self.names, self.scores
        if not self.ranks:
            return dict(zip(names, scores, strict=True))
        best = (np.argsort(np.negative(scores), kind="stable").tolist() if self.order is None else self.order)[:count]
        # `map` calls no function of Python's: most answers have few labels, and there are many answers.
        return dict(zip(map(names.__getitem__, best), map(scores.__getitem__, best), strict=True))


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


def fields_of(answer: Answer, top_k: int | None) -> dict[str, Any]:
    """The answer as the fields of a reply, with its `top_k` best scores (None: all), which are sorted only here."""
    if not isinstance(answer, Prediction):
        return vars(answer)
    names, scores, best, labels, abstained, ranks, energy, order = answer
    if ranks and order is not None:
        # `top` without a call: most answers are these.
        first = order[:top_k]
        shown = dict(zip(map(names.__getitem__, first), map(scores.__getitem__, first), strict=True))
    else:
        shown = answer.top(top_k)
    return {
        "label": names[best],
        "score": scores[best],
        "scores": shown,
        "labels": labels,
        "abstained": abstained,
        "energy": energy,
    }


def answer_of(task_type: str, answer: Any) -> ShortAnswer:
    """The part of an answer (of this module, or a result of a reply) in which two answers agree or differ.

    A token task has entities, if its labels are BIO, else words; a span task that abstains says that there is no span.
    """
    if task_type == "token":
        spans = answer.words if answer.entities is None else answer.entities
        return tuple(sorted((span.start, span.end, span.label) for span in spans))
    if task_type == "span":
        return () if answer.abstained else tuple((span.start, span.end) for span in answer.answers[:1])
    if answer.abstained:
        return None
    if task_type == "regression":
        return cast(float, answer.score)
    return tuple(sorted(answer.labels or ())) if task_type == "multi_label" else cast(str, answer.label)
