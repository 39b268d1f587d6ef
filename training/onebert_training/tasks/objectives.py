"""Objectives: targets, loss and metrics of each task type."""

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from onebert_encoder.answering.stretches import find_spans
from onebert_encoder.text.tokens import Alignment, Tokens
from onebert_store.file.manifest import TaskType
from onebert_training.data.checks import listed
from onebert_training.data.examples import Split
from onebert_training.target_scale import TargetScale
from onebert_training.tasks import metrics
from onebert_training.tasks.alignment import answer_tokens, context_tokens, first_tokens
from onebert_training.tasks.squad import score_answers

NO_TARGET = -100

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


class Objective(ABC):
    """Targets, loss and metrics of one task.

    Args:
        labels: names of the outputs.
        train: the training split, from which a regression takes the scale of its targets; not needed to evaluate.

    Attributes:
        metrics: names of the metrics of `evaluate`; the first decides, unless the data or the user names another.
        target_scale: the unit of the head's outputs.
    """

    metrics: tuple[str, ...]
    target_scale = TargetScale()

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
        return self._score(split, tokens, logits)

    @abstractmethod
    def _score(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]: ...

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
        warnings = [f"never answers {names}" for names in [listed(self._unanswered(split, logits))] if names]
        if (constant := self.constant(split)) is None:
            return Verdict(tuple(warnings))
        answer, always = constant
        of_constant = self._score(split, tokens, [always] * len(split))
        useful = metrics.is_better(metric, scores[metric], of_constant[metric])
        # Accuracy is looked at, too, since people often judge a task by it even if another metric decides.
        for name in dict.fromkeys((metric, *(["accuracy"] if "accuracy" in scores else []))):
            if not metrics.is_better(name, scores[name], of_constant[name]):
                warnings.append(f"{name} {scores[name]:.4f}: always answering {answer} gives {of_constant[name]:.4f}")
        return Verdict(tuple(warnings), useful)

    def _unanswered(self, split: Split, logits: Sequence[Logits]) -> list[str]:
        """Names of the labels that examples have but no answer has."""
        return []

    def constant(self, split: Split) -> tuple[str, Logits] | None:
        """The best constant answer, in words and as logits for all examples; None if the task type has none."""
        return None


class PerText(Objective):
    """Task types with one target for every text; targets and logits of all texts have one shape and are stacked."""

    def targets(self, split: Split, tokens: Sequence[Tokens]) -> list[Tensor]:  # noqa: D102 - as in Objective
        return list(torch.from_numpy(split.gold))

    def loss(self, logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:  # noqa: D102
        outputs = torch.stack(list(logits)).float()
        return self._loss(outputs, torch.stack(list(targets)).to(outputs.device))

    @abstractmethod
    def _loss(self, outputs: Tensor, gold: Tensor) -> Tensor:
        """Mean loss for logits [texts, labels], and targets [texts] or [texts, labels]."""


class SingleLabel(PerText):
    """Cross-entropy of one label index per text."""

    def __init__(self, labels: Sequence[str], train: Split | None = None) -> None:
        super().__init__(labels)
        self.metrics = metrics.single_label_metrics(len(self.labels))

    def _loss(self, outputs: Tensor, gold: Tensor) -> Tensor:
        return F.cross_entropy(outputs, gold)

    def _score(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]:
        return metrics.score_single_label(split.gold, np.stack(logits))

    def _unanswered(self, split: Split, logits: Sequence[Logits]) -> list[str]:
        answered = set(np.stack(logits).argmax(axis=1).tolist())
        return [self.labels[label] for label in np.unique(split.gold).tolist() if label not in answered]

    def constant(self, split: Split) -> tuple[str, Logits] | None:  # noqa: D102
        counts = np.bincount(split.gold, minlength=len(self.labels))
        commonest = int(counts.argmax())
        return repr(self.labels[commonest]), np.eye(len(self.labels), dtype=np.float32)[commonest]


class MultiLabel(PerText):
    """Binary cross-entropy of every label of a text."""

    metrics = metrics.MULTI_LABEL

    def _loss(self, outputs: Tensor, gold: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, gold)

    def _score(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]:
        return metrics.score_multi_label(split.gold, np.stack(logits))

    def _unanswered(self, split: Split, logits: Sequence[Logits]) -> list[str]:
        missing = split.gold.any(axis=0) & ~(np.stack(logits) > 0).any(axis=0)
        return [self.labels[label] for label in np.flatnonzero(missing)]


class Regression(PerText):
    """Squared error of one number per text, in units of the training numbers' spread."""

    metrics = metrics.REGRESSION

    def __init__(self, labels: Sequence[str], train: Split | None = None) -> None:
        super().__init__(labels)
        if train is not None:
            gold = train.gold.astype(np.float64)
            self.target_scale = TargetScale(float(gold.mean()), float(gold.std()))

    def _loss(self, outputs: Tensor, gold: Tensor) -> Tensor:
        return F.mse_loss(outputs[:, 0] / self.target_scale.spread, gold / self.target_scale.spread)

    def _score(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]:
        return metrics.score_regression(split.gold, np.stack(logits))

    def constant(self, split: Split) -> tuple[str, Logits] | None:  # noqa: D102
        mean = split.gold.mean(dtype=np.float64)
        return f"{mean:.4g}", np.array([mean], dtype=np.float32)


class TokenLabel(Objective):
    """Cross-entropy of one label index per word, at the word's first token."""

    def __init__(self, labels: Sequence[str], train: Split | None = None) -> None:
        super().__init__(labels)
        self.metrics = metrics.tag_metrics(self.labels)
        self._unseen = self.labels.index("O") if "O" in self.labels else -1

    def targets(self, split: Split, tokens: Sequence[Tokens]) -> list[Tensor]:
        """For every text [tokens] int64: the label index at the first token of a word, elsewhere `NO_TARGET`."""
        targets = []
        for gold, words, text in zip(split.gold, split.words, tokens, strict=True):
            target = torch.full((len(text),), NO_TARGET, dtype=torch.int64)
            for position, tag in zip(first_tokens(words, _aligned(text)), gold, strict=True):
                if position is not None:
                    target[position] = tag
            targets.append(target)
        return targets

    def has_target(self, target: Tensor) -> bool:  # noqa: D102
        return bool((target != NO_TARGET).any())

    def loss(self, logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Mean over the labeled tokens of all texts; 0 if there are none."""
        outputs = torch.cat(list(logits)).float()
        gold = torch.cat(list(targets)).to(outputs.device)
        total = F.cross_entropy(outputs, gold, ignore_index=NO_TARGET, reduction="sum")
        return total / (gold != NO_TARGET).sum().clamp(min=1)

    def _score(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]:
        predicted = []
        for words, text, values in zip(split.words, tokens, logits, strict=True):
            best = values.argmax(axis=1).tolist()
            positions = first_tokens(words, _aligned(text))
            predicted.append([self._unseen if position is None else best[position] for position in positions])
        return metrics.score_tags(split.gold, predicted, self.labels)


class AnswerSpan(Objective):
    """Cross-entropy of the answer's first and of its last token, over the tokens of the context."""

    metrics = metrics.ANSWERS

    def targets(self, split: Split, tokens: Sequence[Tokens]) -> list[Tensor]:
        """For every question [4] int64: the answer's first and last token, the context's first token and its end.

        The answer is the first acceptable one that was not cut off; without one, its two numbers are `NO_TARGET`.
        """
        targets = []
        for answers, pair in zip(split.gold, tokens, strict=True):
            alignment = _aligned(pair)
            context = context_tokens(alignment)
            seen = (answer_tokens(answer, alignment, pair.truncated) for answer in answers)
            first, last = next(filter(None, seen), (NO_TARGET, NO_TARGET))
            targets.append(torch.tensor([first, last, context.start, context.stop]))
        return targets

    def has_target(self, target: Tensor) -> bool:  # noqa: D102
        return bool(target[0] != NO_TARGET)

    def loss(self, logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Mean over the questions whose answer was not cut off; 0 if there are none."""
        outputs = pad_sequence(list(logits), batch_first=True).float()  # [questions, tokens, 2]
        gold = torch.stack(list(targets)).to(outputs.device)
        positions = torch.arange(outputs.shape[1], device=outputs.device)
        inside = (positions >= gold[:, 2:3]) & (positions < gold[:, 3:4])
        # Not minus infinity, which would give NaN where the whole context was cut off.
        outputs = outputs.masked_fill(~inside[..., None], torch.finfo(torch.float32).min)
        total = F.cross_entropy(outputs, gold[:, :2], ignore_index=NO_TARGET, reduction="sum")
        return total / (gold[:, :2] != NO_TARGET).sum().clamp(min=1)

    def _score(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]:
        return score_answers(split.gold, list(map(self._answer, split.texts, tokens, logits)))

    def _answer(self, text: Any, pair: Tokens, logits: Logits) -> str:
        """The text of the answer, found as a server finds it."""
        found = find_spans(logits.astype(np.float64), _aligned(pair), text[1], 1)
        return found[0].text if found else ""


def _aligned(tokens: Tokens) -> Alignment:
    if tokens.alignment is None:
        raise ValueError("a per-token task needs texts that were tokenized with their alignment")
    return tokens.alignment


OBJECTIVES: Mapping[TaskType, type[Objective]] = {
    "single_label": SingleLabel,
    "multi_label": MultiLabel,
    "regression": Regression,
    "token": TokenLabel,
    "span": AnswerSpan,
}
