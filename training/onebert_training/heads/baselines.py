"""A split as heads see it, heads measured on it, the choice of one; and baselines: scores without any training."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from onebert_encoder.text.tokens import Tokens
from onebert_store.file.manifest import TaskType
from onebert_training.data.examples import Split
from onebert_training.data.splitting import SPLIT_SEED, make_folds
from onebert_training.heads import exact
from onebert_training.heads.exact import ExactHead
from onebert_training.tasks.metrics import LOWER_IS_BETTER
from onebert_training.tasks.objective import Logits, Measurement, Objective

FOLDS = 5
OUT_OF_FOLD = "folds"  # the split that folds measure: a task's own training rows


@dataclass(frozen=True)
class HeadInputs:
    """A split: examples, tokens, targets; the head's input by example, [h] or [labeled words, h], if it is needed."""

    split: str
    examples: Split
    tokens: Sequence[Tokens]
    targets: Sequence[Tensor]
    vectors: Sequence[exact.Vectors]

    def take(self, rows: NDArray[np.int64]) -> "HeadInputs":
        chosen = rows.tolist()
        tokens, targets = [self.tokens[i] for i in chosen], [self.targets[i] for i in chosen]
        vectors = [self.vectors[i] for i in chosen] if self.vectors else ()
        return HeadInputs(self.split, self.examples.take(rows), tokens, targets, vectors)

    def heads(self, objective: Objective, strengths: Sequence[float] = exact.STRENGTHS) -> list[exact.ExactHead]:
        return exact.fit_heads(objective, *exact.labeled_vectors(self.vectors, self.targets), strengths)


@dataclass(frozen=True)
class Answers(Measurement):
    """Exact heads' answers; `folds` counts the folds' heads behind them, 0 if one head answered all."""

    strength: float
    folds: int = 0


def measure(objective: Objective, inputs: HeadInputs, strength: float, logits: Sequence[Logits]) -> Answers:
    """Metrics and loss of logits for a split."""
    scores = objective.evaluate(inputs.examples, inputs.tokens, logits)
    loss = objective.loss([torch.from_numpy(row) for row in logits], list(inputs.targets)).item()
    return Answers(inputs.split, scores, loss, logits, strength)


@exact.one_blas_thread()
def answers_of(objective: Objective, head: exact.ExactHead, inputs: HeadInputs) -> Answers:
    """A head's answers on a split."""
    logits = [_logits(objective, head, inputs, i) for i in range(len(inputs.vectors))]
    return measure(objective, inputs, head.strength, logits)


def _logits(objective: Objective, head: exact.ExactHead, inputs: HeadInputs, i: int) -> Logits:
    """An example's logits: [labels], or [tokens, labels] with zeros for tokens that stand for no word."""
    outputs = head.logits(inputs.vectors[i], objective.target_scale)
    if outputs.ndim == 1:
        return outputs
    logits = np.zeros((len(inputs.targets[i]), outputs.shape[1]), dtype=np.float32)
    logits[exact.stands_for_word(inputs.targets[i])] = outputs
    return logits


def best_strength(answers: Sequence[Answers], metric: str) -> Answers:
    """The answers with the best metric; the loss breaks ties."""
    sign = -1 if metric in LOWER_IS_BETTER else 1
    return max(answers, key=lambda candidate: (sign * candidate.scores[metric], -candidate.loss))


@exact.one_blas_thread()
def cross_validated(objective: Objective, task_type: TaskType, inputs: HeadInputs, metric: str) -> Answers:
    """The best strength's answers, each by a head that was fitted without the example; linked texts share a fold."""
    folds = make_folds(inputs.examples, task_type, FOLDS, SPLIT_SEED)
    logits: list[dict[int, Logits]] = [{} for _ in exact.STRENGTHS]
    for fold in folds:
        for place, head in enumerate(inputs.take(fold.rows).heads(objective)):
            for i in fold.held_out.tolist():
                logits[place][i] = _logits(objective, head, inputs, i)
    out_of_fold = replace(inputs.take(inputs.examples.own_rows), split=OUT_OF_FOLD)
    answers = [
        measure(objective, out_of_fold, strength, [of_head[row] for row in sorted(of_head)])
        for strength, of_head in zip(exact.STRENGTHS, logits, strict=True)
    ]
    return replace(best_strength(answers, metric), folds=len(folds))


Scores = Mapping[str, float]


@dataclass(frozen=True)
class Baseline:
    """A cheap way to answer: its name for the user, and its metrics by split."""

    name: str
    scores: Mapping[str, Scores]


@dataclass(frozen=True)
class Baselines:
    """The cheap ways to answer a task.

    Attributes:
        constant: the best constant answer, such as the commonest label; None if the task type has no constants.
        exact: the exact head on the frozen base; None if the task type has no exact head.
        answers: the head's answers on the validation split, or on the folds without one.
        rows: number of training rows that the head is fitted on.
        folds: number of folds of the training rows if there is no validation split, else 0.
    """

    constant: Baseline | None
    exact: Baseline | None
    head: ExactHead | None
    answers: Answers | None
    rows: int
    seconds: float
    folds: int

    def lines(self, metric: str) -> Iterator[str]:
        on_rows, in_folds = ("on the training rows", f"in {self.folds} folds") if self.folds else ("on validation",) * 2
        for baseline, where in ((self.constant, on_rows), (self.exact, in_folds)):
            if baseline is not None:
                yield f"baseline: {baseline.name}: {metric} {baseline.scores['validation'][metric]:.4f} {where}"

    def facts(self) -> dict[str, Any]:
        constant = self.constant and {"answer": self.constant.name, **self.constant.scores}
        exact = self.exact and self.head and {"strength": self.head.strength, "rows": self.rows, **self.exact.scores}
        return {"constant": constant, "head": exact, "seconds": round(self.seconds, 3)}

    def provenance(self, metric: str) -> dict[str, dict[str, float]]:
        named = {"constant": self.constant, "head": self.exact}
        measured = {name: baseline.scores for name, baseline in named.items() if baseline is not None}
        return {name: {split: scores[metric] for split, scores in each.items()} for name, each in measured.items()}


def constant_baseline(
    objective: Objective, train: HeadInputs, measured: Mapping[str, HeadInputs], metric: str
) -> Baseline | None:
    """The best constant answer by a metric of the training rows, measured on other splits."""
    if (best := objective.best_constant(train.examples, train.tokens, metric)) is None:
        return None
    constant, _ = best

    def scores(inputs: HeadInputs) -> Scores:
        always = objective.always(constant, inputs.tokens, len(inputs.examples))
        return objective.evaluate(inputs.examples, inputs.tokens, always)

    return Baseline(
        f"always answering {constant.answer}", {split: scores(inputs) for split, inputs in measured.items()}
    )
