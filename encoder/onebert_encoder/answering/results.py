"""Answers: numbers in the order of the labels, words, entities, spans."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onebert_encoder.answering.scores import Array

# So many labels, which most tasks have at most, are put in order by Python before NumPy would have begun.
FEW = 32


@dataclass(frozen=True, eq=False)
class Prediction:
    """The answer of a task on whole texts.

    Attributes:
        names: the labels, or the outputs of a regression, in the task's order.
        scores: [labels] float64, of each its probability, or its value.
        best: which of them is the highest; of a regression 0.
        selected: the labels over their thresholds, best first; None where there are no thresholds.
        abstained: whether the task says that it does not know; None where it has no rule for that.
        ranks: whether the names are to be ranked; those of a regression keep their order.
        energy: high where the task knows nothing like the text; None where nobody asks for it.
    """

    names: Sequence[str]
    scores: Array
    best: int
    selected: list[str] | None = None
    abstained: bool | None = None
    ranks: bool = True
    energy: float | None = None

    @property
    def label(self) -> str:
        """The label with the highest score; of a regression the name of its first output."""
        return self.names[self.best]

    @property
    def score(self) -> float:
        """The score of `label`."""
        return float(self.scores[self.best])

    def top(self, count: int | None = None) -> dict[str, float]:
        """Names with their scores, best first: so many, or all; a regression gives all in its own order."""
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
    """A stretch of the text, `text[start:end]` in code points, with its label and that label's score."""

    start: int
    end: int
    label: str
    score: float


@dataclass(frozen=True)
class Labeling:
    """The answer of a token task.

    Attributes:
        words: every word of the text; the first token of a word decides.
        entities: where the labels are BIO, the words joined to entities, each with the mean of its words' scores.
    """

    words: list[Labeled]
    entities: list[Labeled] | None


@dataclass(frozen=True)
class FoundSpan:
    """An answer found in the context, `context[start:end]` in code points, with its probability."""

    start: int
    end: int
    text: str
    score: float


@dataclass(frozen=True)
class Extraction:
    """The answer of a span task: the best spans of the context, best first; none where it has no words.

    Attributes:
        answers: the spans.
        abstained: whether the task says that it does not know; None where it has no rule for that.
    """

    answers: list[FoundSpan]
    abstained: bool | None = None


Answer = Prediction | Labeling | Extraction


def fields_of(found: Answer, top_k: int | None) -> dict[str, Any]:
    """What an answer says by the names that its readers know; numbers are ranked here, and nowhere before.

    Args:
        found: the answer.
        top_k: how many scores are given, best first; None is all.
    """
    if not isinstance(found, Prediction):
        return vars(found)
    return {
        "label": found.label,
        "score": found.score,
        "scores": found.top(top_k),
        "labels": found.selected,
        "abstained": found.abstained,
        "energy": found.energy,
    }
