"""The base class of all task types: targets, loss, metrics, and doubts about a score; uneven labels."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from copy import copy
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onebert_encoder.text.tokens import Tokens
from onebert_store.errors import InvalidSettings
from onebert_training.data.checks import listed
from onebert_training.data.examples import Split
from onebert_training.target_scale import TargetScale
from onebert_training.tasks import metrics

# Above this share of the rows, always answering the commonest label has an accuracy that looks good.
MOST = 2 / 3
# Below this share of the commonest label's rows, never answering a label costs hardly any accuracy.
LEAST = 1 / 10

Counts = NDArray[np.int64]


def unevenness(counts: Counts, labels: Sequence[str], unit: str, least: float = LEAST) -> str | None:
    """Why accuracy says little about these counts, else None; `least`: smallest share of the commonest label's."""
    commonest, total = int(counts.argmax()), int(counts.sum())
    rarest = int(np.where(counts > 0, counts, total + 1).argmin())
    common = repr(labels[commonest][:40])
    if counts[commonest] > MOST * total:
        return f"{common} has {counts[commonest]:,} of {total:,} training {unit}s"
    if counts[rarest] < least * counts[commonest]:
        rare = f"{labels[rarest][:40]!r} has {counts[rarest]:,} training {unit}{'s' * int(counts[rarest] != 1)}"
        return f"{rare} and {common} {counts[commonest]:,}"
    return None


def balanced(counts: NDArray[np.integer]) -> NDArray[np.float32]:
    """[…, labels], scikit-learn's `balanced` weights n / (labels · count) over nonzero counts; 1 for a count of 0."""
    present = (counts > 0).sum(axis=-1, keepdims=True)
    total = counts.sum(axis=-1, keepdims=True)
    weights = np.ones(counts.shape, dtype=np.float32)
    np.divide(total, present * counts, out=weights, where=counts > 0, casting="same_kind")
    return weights


Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Verdict:
    """Doubts about a run's scores; `useful`: the deciding metric beats the best constant answer."""

    warnings: tuple[str, ...] = ()
    useful: bool = True


@dataclass(frozen=True)
class Measurement:
    """Logits on a split, with their metrics and loss."""

    split: str
    scores: dict[str, float]
    loss: float
    logits: Sequence[Logits]


@dataclass(frozen=True)
class Constant:
    """An answer that never changes, in words, and its logits [labels] for every text, or token in a per-token task."""

    answer: str
    logits: Logits


class Objective(ABC):
    """Targets, loss and metrics of one task; a regression takes its target scale from `train`.

    Attributes:
        metrics: names of the metrics of `evaluate`; `decides` takes the first by default.
        unit: the thing that has a label: a row or a word.
        class_weight: weights of the loss by label: [labels], or [2, labels] for labels that are off and on; None
            weights all examples equally.
    """

    metrics: tuple[str, ...]
    unit = "row"
    target_scale = TargetScale()
    class_weight: Tensor | None = None

    def __init__(self, labels: Sequence[str], train: Split | None = None) -> None:
        self.labels = tuple(labels)

    @abstractmethod
    def targets(self, split: Split, tokens: Sequence[Tokens]) -> list[Tensor]:
        """The targets of `loss`: one CPU tensor per example; per-token tasks need aligned tokens."""

    def has_target(self, target: Tensor) -> bool:
        """Whether an example still has something to learn after its text was cut."""
        return True

    @abstractmethod
    def loss(self, logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Mean loss of a batch, [] float32, differentiable; logits are [labels], or [tokens, labels] per token."""

    def weighted(self, train: Split) -> Self:
        """A copy whose loss weights all labels equally, however rare; InvalidSettings if the task has no labels."""
        if (counts := self.label_counts(train)) is None:
            raise InvalidSettings("--class-weight is for tasks whose answers are labels")
        weighted = copy(self)
        weighted.class_weight = torch.from_numpy(self._weights(counts, train))
        return weighted

    def _weights(self, counts: Counts, train: Split) -> NDArray[np.float32]:
        return balanced(counts)

    def evaluate(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]:
        """Every metric of logits as for `loss`, on aligned tokens if per token; NotFinite if a logit is not finite."""
        metrics.check_finite(logits)
        return self.score(split, self.read(split, tokens, logits))

    def read(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> Sequence[Any]:
        """The input of `score` per example: its logits, or in a per-token task the answer decoded from them."""
        return logits

    @abstractmethod
    def score(self, split: Split, answers: Sequence[Any]) -> dict[str, float]:
        """Every metric, from the output of `read`; decode once if parts of a split are scored often."""

    def decides(self, train: Split, requested: str | None) -> str:
        """The deciding metric: `requested`, else macro F1 if the labels are uneven, else the first."""
        return metrics.choose_metric(self.metrics, requested or ("macro_f1" if self.unevenness(train) else None))

    def unevenness(self, train: Split) -> str | None:
        """Half a sentence on why the first metric says little about such labels; None if it says enough."""
        return None

    def judge(
        self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits], scores: Mapping[str, float], metric: str
    ) -> Verdict:
        """Doubts about scores of logits: labels that are never answered, and answers no better than a constant."""
        warnings, useful = [], True
        if never := self.never_answered(split, tokens, logits):
            counts = [f"{count:,} {self.unit}{'s' * (count != 1)}" for count in never.values()]
            warnings.append(f"never answers {listed(never, counts)}")
        # Check accuracy as well: people often judge a task by it even if another metric decides.
        for name in dict.fromkeys((metric, *(["accuracy"] if "accuracy" in scores else []))):
            if (constant := self.best_constant(split, tokens, name)) is None:
                continue
            of_constant = constant[1][name]
            if not metrics.is_better(name, scores[name], of_constant):
                warnings.append(
                    f"{name} {scores[name]:.4f}: always answering {constant[0].answer} gives {of_constant:.4f}"
                )
                useful = useful and name != metric
        return Verdict(tuple(warnings), useful)

    def best_constant(
        self, split: Split, tokens: Sequence[Tokens], metric: str
    ) -> tuple[Constant, dict[str, float]] | None:
        """The constant answer that is best by a metric, with its scores; None if the task type has no constants."""
        best: tuple[Constant, dict[str, float]] | None = None
        for constant in self.constants(split):
            scores = self.score(split, self.read(split, tokens, self.always(constant, tokens, len(split))))
            if best is None or metrics.is_better(metric, scores[metric], best[1][metric]):
                best = constant, scores
        return best

    def constants(self, split: Split) -> list[Constant]:
        """Constant answers that may score well by a metric of the task."""
        return []

    def always(self, constant: Constant, tokens: Sequence[Tokens], count: int) -> list[Logits]:
        """The logits of a constant for `count` examples; per-token tasks need their tokens."""
        return [constant.logits] * count

    def label_counts(self, split: Split) -> Counts | None:
        """[labels], number of rows (words in a token task) with each label; None if the answers are not labels."""
        return None

    def rows_with(self, split: Split, labels: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Indices of the examples that have one of `labels`, a mask [labels]; for task types with `label_counts`."""
        raise NotImplementedError

    def answered_labels(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> NDArray[np.bool_]:
        """[labels], whether any answer has the label; for task types with `label_counts`."""
        raise NotImplementedError

    def never_answered(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, int]:
        """Labels that examples have but no answer has, with the number of these rows (words in a token task)."""
        if (counts := self.label_counts(split)) is None:
            return {}
        never = np.flatnonzero((counts > 0) & ~self.answered_labels(split, tokens, logits))
        return {self.labels[label]: int(counts[label]) for label in never}
