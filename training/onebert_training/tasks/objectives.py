"""Objectives: targets, loss and metrics of each task type."""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F
from torch.nn.utils.rnn import pad_sequence

from onebert_encoder.answering.stretches import find_spans, is_bio
from onebert_encoder.text.tokens import Alignment, Tokens
from onebert_store.file.manifest import TaskType
from onebert_training.data.checks import listed
from onebert_training.data.examples import Split
from onebert_training.target_scale import TargetScale
from onebert_training.tasks import metrics
from onebert_training.tasks.objective import Constant, Counts, Logits, Objective, balanced, unevenness
from onebert_training.tasks.reading import answer_tokens, context_tokens, first_tokens

NO_TARGET = -100


class PerText(Objective):
    """Task types with one target per text; targets and logits have one shape for all texts and are stacked.

    A teacher's probabilities are targets as well: both cross-entropies take them. They stay at temperature 1, at which
    a delta's probabilities are served: the loss is least where both are equal.
    """

    def targets(self, split: Split, tokens: Sequence[Tokens]) -> list[Tensor]:
        return list(torch.from_numpy(split.gold if split.soft is None else split.soft))

    def loss(self, logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        outputs = torch.stack(list(logits)).float()
        return self._loss(outputs, torch.stack(list(targets)).to(outputs.device))

    @abstractmethod
    def _loss(self, outputs: Tensor, gold: Tensor) -> Tensor:
        """Mean loss for logits [texts, labels], and targets [texts] or [texts, labels]."""


class SingleLabel(PerText):
    """Cross-entropy of one label index per text, or of the labels' probabilities."""

    def __init__(self, labels: Sequence[str], train: Split | None = None) -> None:
        super().__init__(labels)
        self.metrics = ("accuracy", "macro_f1", "matthews", *(("f1",) if len(self.labels) == 2 else ()))

    def _loss(self, outputs: Tensor, gold: Tensor) -> Tensor:
        if self.class_weight is None:
            return F.cross_entropy(outputs, gold)
        # Divide by the number of rows, not by the sum of their weights, which varies between batches: the mean over all
        # batches is then the mean over the training rows.
        return F.cross_entropy(outputs, gold, self.class_weight.to(outputs.device), reduction="sum") / len(gold)

    def score(self, split: Split, answers: Sequence[Logits]) -> dict[str, float]:
        return metrics.score_single_label(split.gold, np.stack(answers))

    def unevenness(self, train: Split) -> str | None:
        return unevenness(self.label_counts(train), self.labels, self.unit)

    def constants(self, split: Split) -> list[Constant]:
        """The commonest label; also label 1 of two, because F1 forgives answering nothing else."""
        chosen = [int(self.label_counts(split).argmax()), *([1] if len(self.labels) == 2 else [])]
        certain = np.eye(len(self.labels), dtype=np.float32)
        return [Constant(listed([self.labels[label]]), certain[label]) for label in dict.fromkeys(chosen)]

    def label_counts(self, split: Split) -> Counts:
        return np.bincount(split.gold, minlength=len(self.labels))

    def rows_with(self, split: Split, labels: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.flatnonzero(labels[split.gold])

    def answered_labels(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> NDArray[np.bool_]:
        stacked = np.stack(logits)
        answered = stacked[~np.isnan(stacked).any(axis=1)].argmax(axis=1)
        return np.bincount(answered, minlength=len(self.labels)) > 0


class MultiLabel(PerText):
    """Binary cross-entropy of every label of a text."""

    metrics = metrics.MULTI_LABEL

    def _loss(self, outputs: Tensor, gold: Tensor) -> Tensor:
        if self.class_weight is None:
            return F.binary_cross_entropy_with_logits(outputs, gold)
        off, on = self.class_weight.to(outputs.device)
        return F.binary_cross_entropy_with_logits(outputs, gold, torch.where(gold > 0, on, off))

    def _weights(self, counts: Counts, train: Split) -> NDArray[np.float32]:
        """[2, labels]: each label is a task of its own, off or on."""
        return balanced(np.stack([len(train) - counts, counts], axis=1)).T.copy()

    def score(self, split: Split, answers: Sequence[Logits]) -> dict[str, float]:
        return metrics.score_multi_label(split.gold, np.stack(answers))

    def constants(self, split: Split) -> list[Constant]:
        """The best constant set by each metric: the k commonest labels, all labels, the commonest set."""
        counts = self.label_counts(split)
        order = np.argsort(-counts, kind="stable")
        # Micro F1 of always answering the first k labels: 2 · hits / (answers + gold labels).
        answers = len(split) * np.arange(1, len(order) + 1)
        first = int((2 * counts[order].cumsum() / (answers + counts.sum())).argmax()) + 1
        sets, times = np.unique(split.gold > 0, axis=0, return_counts=True)
        chosen = (order[:first], order, np.flatnonzero(sets[times.argmax()]))
        return [self._constant(sorted(labels.tolist())) for labels in chosen]

    def _constant(self, on: Sequence[int]) -> Constant:
        logits = np.full(len(self.labels), -1, dtype=np.float32)
        logits[on] = 1
        return Constant(listed(self.labels[label] for label in on) or "no label", logits)

    def label_counts(self, split: Split) -> Counts:
        return np.asarray(np.count_nonzero(split.gold, axis=0))

    def rows_with(self, split: Split, labels: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.flatnonzero((split.gold[:, labels] > 0).any(axis=1))

    def answered_labels(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> NDArray[np.bool_]:
        return np.asarray((np.stack(logits) > 0).any(axis=0))


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

    def score(self, split: Split, answers: Sequence[Logits]) -> dict[str, float]:
        return metrics.score_regression(split.gold, np.stack(answers))

    def constants(self, split: Split) -> list[Constant]:
        """Mean and median: the best numbers by squared and by absolute error."""
        gold = split.gold.astype(np.float64)
        numbers = dict.fromkeys((float(gold.mean()), float(np.median(gold))))
        return [Constant(f"{number:.4g}", np.array([number], dtype=np.float32)) for number in numbers]


class TokenLabel(Objective):
    """Cross-entropy of one label index per word, at the word's first token."""

    unit = "word"

    def __init__(self, labels: Sequence[str], train: Split | None = None) -> None:
        super().__init__(labels)
        self.metrics = metrics.tag_metrics(self.labels)
        self._unseen = self.labels.index("O") if "O" in self.labels else -1

    def targets(self, split: Split, tokens: Sequence[Tokens]) -> list[Tensor]:
        """For every text [tokens] int64: the label index at the first token of a word, `NO_TARGET` elsewhere."""
        targets = []
        for gold, words, text in zip(split.gold, split.words, tokens, strict=True):
            target = torch.full((len(text),), NO_TARGET, dtype=torch.int64)
            for position, tag in zip(first_tokens(words, _aligned(text)), gold, strict=True):
                if position is not None:
                    target[position] = tag
            targets.append(target)
        return targets

    def has_target(self, target: Tensor) -> bool:
        return bool((target != NO_TARGET).any())

    def loss(self, logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Mean over the labeled tokens of all texts; 0 without any."""
        outputs = torch.cat(list(logits)).float()
        gold = torch.cat(list(targets)).to(outputs.device)
        weight = None if self.class_weight is None else self.class_weight.to(outputs.device)
        total = F.cross_entropy(outputs, gold, weight, ignore_index=NO_TARGET, reduction="sum")
        return total / (gold != NO_TARGET).sum().clamp(min=1)

    def score(self, split: Split, answers: Sequence[Sequence[int]]) -> dict[str, float]:
        return metrics.score_tags(split.gold, answers, self.labels)

    def read(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> list[list[int]]:
        """The label index of every word of each text; words that are cut off get `O`, or -1 if `O` is not a label."""
        answers = []
        for words, text, values in zip(split.words, tokens, logits, strict=True):
            best = values.argmax(axis=1).tolist()
            positions = first_tokens(words, _aligned(text))
            answers.append([self._unseen if position is None else best[position] for position in positions])
        return answers

    def unevenness(self, train: Split) -> str | None:
        """Entities are never uneven, as `O` is not one. Other tags may be rare (least 0), but none may dominate."""
        return None if is_bio(self.labels) else unevenness(self.label_counts(train), self.labels, self.unit, 0)

    def constants(self, split: Split) -> list[Constant]:
        """The two commonest tags, because the first may be `O`, which is not an entity."""
        common = np.argsort(-self.label_counts(split), kind="stable")[:2]
        certain = np.eye(len(self.labels), dtype=np.float32)
        return [Constant(listed([self.labels[label]]), certain[label]) for label in common]

    def always(self, constant: Constant, tokens: Sequence[Tokens], count: int) -> list[Logits]:
        return [np.tile(constant.logits, (len(text), 1)) for text in tokens]

    def label_counts(self, split: Split) -> Counts:
        return np.bincount(np.concatenate(split.gold), minlength=len(self.labels))

    def rows_with(self, split: Split, labels: NDArray[np.bool_]) -> NDArray[np.int64]:
        return np.flatnonzero([labels[list(tags)].any() for tags in split.gold])

    def answered_labels(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> NDArray[np.bool_]:
        tags = np.concatenate(self.read(split, tokens, logits))
        return np.bincount(tags[tags >= 0], minlength=len(self.labels)) > 0


class AnswerSpan(Objective):
    """Cross-entropy of the answer's first and of its last token, over the tokens of the context."""

    metrics = metrics.ANSWERS

    def targets(self, split: Split, tokens: Sequence[Tokens]) -> list[Tensor]:
        """By question [4] int64: answer's first and last token (else `NO_TARGET`), context's first token and end."""
        targets = []
        for answers, pair in zip(split.gold, tokens, strict=True):
            alignment = _aligned(pair)
            context = context_tokens(alignment)
            spans = (answer_tokens(answer, alignment, pair.truncated) for answer in answers)
            first, last = next(filter(None, spans), (NO_TARGET, NO_TARGET))
            targets.append(torch.tensor([first, last, context.start, context.stop]))
        return targets

    def has_target(self, target: Tensor) -> bool:
        return bool(target[0] != NO_TARGET)

    def loss(self, logits: Sequence[Tensor], targets: Sequence[Tensor]) -> Tensor:
        """Mean over the questions whose answer was not cut off; 0 without any."""
        outputs = pad_sequence(list(logits), batch_first=True).float()  # [questions, tokens, 2]
        gold = torch.stack(list(targets)).to(outputs.device)
        positions = torch.arange(outputs.shape[1], device=outputs.device)
        inside = (positions >= gold[:, 2:3]) & (positions < gold[:, 3:4])
        # Minus infinity would give NaN if the whole context was cut off.
        outputs = outputs.masked_fill(~inside[..., None], torch.finfo(torch.float32).min)
        total = F.cross_entropy(outputs, gold[:, :2], ignore_index=NO_TARGET, reduction="sum")
        return total / (gold[:, :2] != NO_TARGET).sum().clamp(min=1)

    def score(self, split: Split, answers: Sequence[str]) -> dict[str, float]:
        return metrics.score_answers(split.gold, answers)

    def read(self, split: Split, tokens: Sequence[Tokens], logits: Sequence[Logits]) -> list[str]:
        return list(map(self._answer, split.texts, tokens, logits))

    def _answer(self, text: Any, pair: Tokens, logits: Logits) -> str:
        spans = find_spans(logits.astype(np.float64), _aligned(pair), text[1], 1)
        return spans[0].text if spans else ""


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
