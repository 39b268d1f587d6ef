"""A split as heads see it, heads measured on it, and the choice of one by a metric or by cross-validation."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onebert_encoder.text.tokens import Tokens
from onebert_store.file.manifest import TaskType
from onebert_training.data.examples import Split
from onebert_training.data.splitting import SPLIT_SEED, fold_of
from onebert_training.heads import exact
from onebert_training.tasks.metrics import LOWER_IS_BETTER
from onebert_training.tasks.objective import Logits, Measurement, Objective

FOLDS = 5


@dataclass(frozen=True)
class Seen:
    """A split: examples, tokens, targets; the head's input by example, [h] or [labeled words, h], if it is needed."""

    split: str
    examples: Split
    tokens: Sequence[Tokens]
    targets: Sequence[Tensor]
    vectors: Sequence[exact.Vectors]

    def take(self, rows: NDArray[np.int64]) -> "Seen":
        chosen = rows.tolist()
        tokens, targets = [self.tokens[i] for i in chosen], [self.targets[i] for i in chosen]
        vectors = [self.vectors[i] for i in chosen] if self.vectors else ()
        return Seen(self.split, self.examples.take(rows), tokens, targets, vectors)

    def heads(self, objective: Objective, strengths: Sequence[float] = exact.STRENGTHS) -> list[exact.ExactHead]:
        return exact.fit_heads(objective, *exact.labeled_vectors(self.vectors, self.targets), strengths)


@dataclass(frozen=True)
class Answers(Measurement):
    """Exact heads' answers; `folds` counts the folds' heads behind them, 0 if one head answered all."""

    strength: float
    folds: int = 0


def measure(objective: Objective, seen: Seen, strength: float, logits: Sequence[Logits]) -> Answers:
    """Metrics and loss of logits for a split."""
    scores = objective.evaluate(seen.examples, seen.tokens, logits)
    loss = objective.loss([torch.from_numpy(row) for row in logits], list(seen.targets)).item()
    return Answers(seen.split, scores, loss, logits, strength)


@exact.one_blas_thread()
def answers_of(objective: Objective, head: exact.ExactHead, seen: Seen) -> Answers:
    """A head's answers on a split."""
    logits = [_logits(objective, head, seen, i) for i in range(len(seen.vectors))]
    return measure(objective, seen, head.strength, logits)


def _logits(objective: Objective, head: exact.ExactHead, seen: Seen, i: int) -> Logits:
    """An example's logits: [labels], or [tokens, labels] with zeros for tokens that stand for no word."""
    outputs = head.logits(seen.vectors[i], objective.target_scale)
    if outputs.ndim == 1:
        return outputs
    logits = np.zeros((len(seen.targets[i]), outputs.shape[1]), dtype=np.float32)
    logits[exact.stands_for_word(seen.targets[i])] = outputs
    return logits


def best_strength(answers: Sequence[Answers], metric: str) -> Answers:
    """The answers with the best metric; the loss breaks ties."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    return max(answers, key=lambda one: (sign * one.scores[metric], -one.loss))


@exact.one_blas_thread()
def cross_validated(objective: Objective, task_type: TaskType, seen: Seen, metric: str) -> Answers:
    """The best strength's answers, each by a head that was fitted without the example; equal texts share a fold."""
    fold = fold_of(seen.examples, task_type, FOLDS, SPLIT_SEED)
    logits: list[list[Logits]] = [[np.empty(0, dtype=np.float32)] * len(fold) for _ in exact.STRENGTHS]
    for one in np.unique(fold):
        out = np.flatnonzero(fold == one)
        for place, head in enumerate(seen.take(np.flatnonzero(fold != one)).heads(objective)):
            for i in out.tolist():
                logits[place][i] = _logits(objective, head, seen, i)
    answers = [measure(objective, seen, *one) for one in zip(exact.STRENGTHS, logits, strict=True)]
    best = best_strength(answers, metric)
    return replace(best, folds=len(np.unique(fold)))
