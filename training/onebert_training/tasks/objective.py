"""The objective of a task, whatever its type: targets, loss, metrics, and what is doubtful about a score."""

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
from onebert_training.tasks.uneven import Counts, balanced

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Verdict:
    """Doubts about a run's scores.

    Attributes:
        warnings: the doubts, a sentence each.
        useful: whether the deciding metric is better than that of the best constant answer.
    """

    warnings: tuple[str, ...] = ()
    useful: bool = True


@dataclass(frozen=True)
class Constant:
    """An answer that never changes.

    Attributes:
        answer: in words.
        logits: [labels] for every text, or for every token in a per-token task.
    """

    answer: str
    logits: Logits


class Objective(ABC):
    """Targets, loss and metrics of one task.

    Args:
        labels: names of the outputs.
        train: the training split, from which a regression takes the scale of its targets; not needed to evaluate.

    Attributes:
        metrics: names of the metrics of `evaluate`; the first decides, unless `decides` says otherwise.
        unit: what has a label: a row or a word.
        target_scale: the unit of the head's outputs.
        class_weight: weights of the loss by label: [labels], or [2, labels] for labels that are off and on; None where
            all examples count alike.
    """

    metrics: tuple[str, ...]
    unit = "row"
    target_scale = TargetScale()
    class_weight: Tensor | None = None

    def __init__(self, labels: Sequence[str], train: Split | None = None) -> None:
        self.labels = tuple(labels)

    @abstractmethod
    def targets(self, split: Split, tokens: Sequence[Tokens]) -> list[Tensor]:
        """The targets that `loss` compares the logits with: a tensor for every example, on the CPU.

        Args:
            split: the examples.
            tokens: the tokens of their texts; per-token tasks need the alignment.
        """

    def has_target(self, target: Tensor) -> bool:
        """Whether an example still has something to learn after its text was cut."""
        return True

    @abstractmethod
    def loss(self, logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Mean loss of a batch of examples, [] float32, differentiable.

        Args:
            logits: [labels] for every example, or [tokens, labels] in a per-token task.
            targets: the targets of the same examples.
        """

    def weighted(self, train: Split) -> Self:
        """The same objective, in whose loss all labels count alike, however rare they are in `train`.

        Raises:
            InvalidSettings: the answers of the task type are no labels.
        """
        if (counts := self.label_counts(train)) is None:
            raise InvalidSettings("--class-weight is for tasks whose answers are labels")
        weighted = copy(self)
        weighted.class_weight = torch.from_numpy(self._weights(counts, train))
        return weighted

    def _weights(self, counts: Counts, train: Split) -> NDArray[np.float32]:
        return balanced(counts)

    def evaluate(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]:
        """Every metric of the task.

        Args:
            split: the examples.
            tokens: the tokens of their texts; per-token tasks need the alignment.
            logits: [labels] for every example, or [tokens, labels] in a per-token task.

        Raises:
            NotFinite: a logit is NaN or infinite.
        """
        metrics.check_finite(logits)
        return self.score(split, self.read(split, tokens, logits))

    def read(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> Sequence[Any]:
        """What `score` takes of each example: its logits, or in a per-token task the answer that stands in them."""
        return logits

    @abstractmethod
    def score(self, split: Split, answers: Sequence[Any]) -> dict[str, float]:
        """Every metric of what `read` gives; where parts of a split are measured often, that is read once."""

    def decides(self, train: Split, wanted: str | None) -> str:
        """The deciding metric: `wanted`, else macro F1 where labels are uneven, else the first.

        Raises:
            InvalidData: the task has no such metric.
        """
        return metrics.choose_metric(self.metrics, wanted or ("macro_f1" if self.unevenness(train) else None))

    def unevenness(self, train: Split) -> str | None:
        """Why the first metric says little of answers to such labels, as half a sentence; None where it says enough."""
        return None

    def judge(
        self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits], scores: Mapping[str, float], metric: str
    ) -> Verdict:
        """Doubts about scores: labels that are never answered, and answers no better than a constant one.

        Args:
            split: the examples.
            tokens: the tokens of their texts.
            logits: the logits of every example.
            scores: the metrics of these logits, from `evaluate`.
            metric: name of the deciding metric.
        """
        warnings, useful = [], True
        if never := self.never_answered(split, tokens, logits):
            counts = [f"{count:,} {self.unit}{'s' * (count != 1)}" for count in never.values()]
            warnings.append(f"never answers {listed(never, counts)}")
        # Accuracy is looked at, too, since people often judge a task by it even if another metric decides.
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
        """The answer that never changes and is best by a metric, with its metrics; None if the task type has none."""
        best: tuple[Constant, dict[str, float]] | None = None
        for constant in self.constants(split):
            scores = self.score(split, self.read(split, tokens, self.always(constant, tokens, len(split))))
            if best is None or metrics.is_better(metric, scores[metric], best[1][metric]):
                best = constant, scores
        return best

    def constants(self, split: Split) -> list[Constant]:
        """Answers that never change, those that may score well by a metric of the task."""
        return []

    def always(self, constant: Constant, tokens: Sequence[Tokens], count: int) -> list[Logits]:
        """The logits of a constant for `count` examples; per-token tasks need their tokens."""
        return [constant.logits] * count

    def label_counts(self, split: Split) -> Counts | None:
        """[labels], how many rows (words, in a token task) have each label; None where answers are no labels."""
        return None

    def rows_with(self, split: Split, labels: NDArray[np.bool_]) -> NDArray[np.int64]:
        """The examples that have a label of `labels`, [labels]; for task types that have `label_counts`."""
        raise NotImplementedError

    def answered(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> NDArray[np.bool_]:
        """[labels], whether any answer has the label; for task types that have `label_counts`."""
        raise NotImplementedError

    def never_answered(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, int]:
        """The labels that examples have but no answer has, with the number of these rows, or words in a token task."""
        if (counts := self.label_counts(split)) is None:
            return {}
        never = np.flatnonzero((counts > 0) & ~self.answered(split, tokens, logits))
        return {self.labels[label]: int(counts[label]) for label in never}
