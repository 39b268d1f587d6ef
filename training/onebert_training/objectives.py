"""What each task type learns and is measured by: targets, loss, predictions, metrics; one entry per task type."""

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

from onebert_encoder.answer import TASK_TYPES, Extraction, Question
from onebert_encoder.tokens import Alignment, Tokens
from onebert_store.manifest import TaskType
from onebert_training import metrics
from onebert_training.examples import Split
from onebert_training.spans import answer_tokens, context_tokens, score_answers
from onebert_training.words import first_tokens

NO_TARGET = -100

Logits = NDArray[np.float32]


@dataclass(frozen=True)
class Unit:
    """The targets of a regression are learned in units of their spread around their mean; 0 and 1 elsewhere."""

    mean: float = 0.0
    spread: float = 1.0


class Objective(ABC):
    """What a task learns and is measured by.

    Args:
        labels: names of the outputs.
        train: the training split, from which a regression takes its unit; not needed to evaluate.

    Attributes:
        metrics: names of what `evaluate` reports; the first decides, unless the data or the user names another.
        unit: what the head's outputs are counted in.
    """

    metrics: tuple[str, ...]
    unit = Unit()

    def __init__(self, labels: Sequence[str], train: Split | None = None) -> None:
        self.labels = tuple(labels)

    @abstractmethod
    def targets(self, split: Split, tokens: Sequence[Tokens]) -> list[Tensor]:
        """What `loss` compares the logits with: a tensor for every example, on the CPU.

        Args:
            split: the examples.
            tokens: of the same texts; per-token tasks need their alignment.
        """

    def has_target(self, target: Tensor) -> bool:
        """Whether anything of an example is left to learn after it was cut."""
        return True

    @abstractmethod
    def loss(self, logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Mean loss of a batch of examples, [] float32, differentiable.

        Args:
            logits: [C] of every example, or [tokens, C] in a per-token task.
            targets: of the same examples.
        """

    def evaluate(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]:
        """Every metric of the task.

        Args:
            split: the examples.
            tokens: of the same texts; per-token tasks need their alignment.
            logits: [C] of every example, or [tokens, C] in a per-token task.

        Raises:
            NotFinite: a logit is NaN or infinite.
        """
        metrics.check_finite(logits)
        return self._score(split, tokens, logits)

    @abstractmethod
    def _score(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]: ...


class PerText(Objective):
    """One target for every text; what its loss and metrics compare has equal shapes, so that it can be stacked."""

    def targets(self, split: Split, tokens: Sequence[Tokens]) -> list[Tensor]:  # noqa: D102 - as in Objective
        return list(torch.from_numpy(split.gold))

    def loss(self, logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:  # noqa: D102
        outputs = torch.stack(list(logits)).float()
        return self._loss(outputs, torch.stack(list(targets)).to(outputs.device))

    @abstractmethod
    def _loss(self, outputs: Tensor, gold: Tensor) -> Tensor:
        """Mean loss of [texts, C] logits, and [texts] or [texts, C] targets."""


class SingleLabel(PerText):
    """Cross-entropy of one label index per text."""

    def __init__(self, labels: Sequence[str], train: Split | None = None) -> None:
        super().__init__(labels)
        self.metrics = metrics.single_label_metrics(len(self.labels))

    def _loss(self, outputs: Tensor, gold: Tensor) -> Tensor:
        return F.cross_entropy(outputs, gold)

    def _score(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]:
        return metrics.score_single_label(split.gold, np.stack(logits))


class MultiLabel(PerText):
    """Binary cross-entropy of every label of a text, on or off."""

    metrics = metrics.MULTI_LABEL

    def _loss(self, outputs: Tensor, gold: Tensor) -> Tensor:
        return F.binary_cross_entropy_with_logits(outputs, gold)

    def _score(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]:
        return metrics.score_multi_label(split.gold, np.stack(logits))


class Regression(PerText):
    """Squared error of one number per text, in units of the training numbers' spread."""

    metrics = metrics.REGRESSION

    def __init__(self, labels: Sequence[str], train: Split | None = None) -> None:
        super().__init__(labels)
        if train is not None:
            gold = train.gold.astype(np.float64)
            self.unit = Unit(float(gold.mean()), float(gold.std()))

    def _loss(self, outputs: Tensor, gold: Tensor) -> Tensor:
        return F.mse_loss(outputs[:, 0] / self.unit.spread, gold / self.unit.spread)

    def _score(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]:
        return metrics.score_regression(split.gold, np.stack(logits))


class TokenLabel(Objective):
    """Cross-entropy of one label index per word, at the word's first token."""

    def __init__(self, labels: Sequence[str], train: Split | None = None) -> None:
        super().__init__(labels)
        self.metrics = metrics.tag_metrics(self.labels)
        self._unseen = self.labels.index("O") if "O" in self.labels else -1

    def targets(self, split: Split, tokens: Sequence[Tokens]) -> list[Tensor]:
        """[tokens] int64 for every text: the label index, or `NO_TARGET` where no word begins."""
        targets = []
        for gold, words, text in zip(split.gold, split.words, tokens, strict=True):
            target = torch.full((len(text),), NO_TARGET, dtype=torch.int64)
            for place, tag in zip(first_tokens(words, _aligned(text)), gold, strict=True):
                if place is not None:
                    target[place] = tag
            targets.append(target)
        return targets

    def has_target(self, target: Tensor) -> bool:  # noqa: D102
        return bool((target != NO_TARGET).any())

    def loss(self, logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Mean over the labeled tokens of all texts; 0 where there is none."""
        outputs = torch.cat(list(logits)).float()
        gold = torch.cat(list(targets)).to(outputs.device)
        total = F.cross_entropy(outputs, gold, ignore_index=NO_TARGET, reduction="sum")
        return total / (gold != NO_TARGET).sum().clamp(min=1)

    def _score(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]:
        predicted = []
        for words, text, values in zip(split.words, tokens, logits, strict=True):
            best = values.argmax(axis=1).tolist()
            places = first_tokens(words, _aligned(text))
            predicted.append([self._unseen if place is None else best[place] for place in places])
        return metrics.score_tags(split.gold, predicted, self.labels)


class AnswerSpan(Objective):
    """Cross-entropy of the answer's first and last token among those of the context."""

    metrics = metrics.ANSWERS

    def targets(self, split: Split, tokens: Sequence[Tokens]) -> list[Tensor]:
        """[4] int64 for every question: the answer's first and last token, the context's first token and its end.

        The first acceptable answer that was not cut off counts; where there is none, `NO_TARGET` stands twice.
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
        """Mean over the questions whose answer was not cut off; 0 where there is none."""
        outputs = pad_sequence(list(logits), batch_first=True).float()  # [questions, tokens, 2]
        gold = torch.stack(list(targets)).to(outputs.device)
        places = torch.arange(outputs.shape[1], device=outputs.device)
        inside = (places >= gold[:, 2:3]) & (places < gold[:, 3:4])
        # Not minus infinity, which gives NaN where the whole context was cut off.
        outputs = outputs.masked_fill(~inside[..., None], torch.finfo(torch.float32).min)
        total = F.cross_entropy(outputs, gold[:, :2], ignore_index=NO_TARGET, reduction="sum")
        return total / (gold[:, :2] != NO_TARGET).sum().clamp(min=1)

    def _score(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> dict[str, float]:
        return score_answers(split.gold, list(map(self._answer, split.texts, tokens, logits)))

    def _answer(self, text: Any, pair: Tokens, logits: Logits) -> str:
        """As the server would answer."""
        found = TASK_TYPES["span"].answer(Question(logits.astype(np.float64), self.labels, text, _aligned(pair), 1))
        return found.answers[0].text if isinstance(found, Extraction) and found.answers else ""


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
