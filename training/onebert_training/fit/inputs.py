"""A data set as every run on it reads it: tokens for one base and length, targets, shared computations, exact heads."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.maths.fold import fold
from onebert_encoder.text.tokens import Text
from onebert_store.errors import InvalidData, NotFinite
from onebert_store.file.decision import CutRule
from onebert_store.file.delta import HEAD_BIAS, HEAD_WEIGHT
from onebert_store.file.manifest import PER_TOKEN, SIAMESE, Pooling, head_width
from onebert_training.data.dataset import Dataset
from onebert_training.data.splitting import SPLIT_SEED, even_order
from onebert_training.fit.features import Inputs, predict
from onebert_training.heads.baselines import (
    FOLDS,
    OUT_OF_FOLD,
    Answers,
    Baseline,
    Baselines,
    HeadInputs,
    answers_of,
    best_strength,
    constant_baseline,
    cross_validated,
)
from onebert_training.heads.exact import ExactHead, Vectors, has_exact_head, stands_for_word
from onebert_training.tasks.objective import Objective, Verdict
from onebert_training.tasks.objectives import OBJECTIVES
from onebert_training.tasks.reading import reading_notes

# Upper limit of texts or labeled words to fit a baseline and choose its strength: more take too long for a baseline,
# and hardly change a head of some thousand numbers.
MOST_VECTORS = 20_000

# Rows that baselines may read, as a share of the rows of all steps: each row once in four epochs. A step on whole
# matrices costs three forward passes and a baseline one, so a baseline costs a twelfth of such a training
# (decision 45). They always read `LEAST_TEXTS` rows.
BASELINE_SHARE, LEAST_TEXTS = 0.25, 300


@dataclass(frozen=True)
class Fitted:
    """The exact head of the best strength: seconds, fitted `rows`, and `answers` on validation, else in folds."""

    rows: HeadInputs
    head: ExactHead
    answers: Answers
    seconds: float


class Frozen:
    """The frozen base's vectors for one data set, and the heads on them, computed once for all runs."""

    def __init__(
        self, base: Base, data: Dataset, splits: Mapping[str, Inputs], targets: Mapping[str, Sequence[Tensor]]
    ) -> None:
        self._base, self._data, self._splits, self._targets = base, data, splits, targets
        self._head_inputs: dict[tuple[str, str], HeadInputs] = {}
        self._fitted: dict[tuple[Objective, str, str, int], Fitted] = {}
        self._found: dict[tuple[Objective, str, str, int], Baselines] = {}

    def head_inputs(self, split: str, pooling: Pooling) -> HeadInputs:
        """A split as heads see it; raises NotFinite if the base's vectors are not finite."""
        if (split, pooling) not in self._head_inputs:
            self._head_inputs[split, pooling] = self._with_vectors(self.bare(split), self._splits[split], pooling)
        return self._head_inputs[split, pooling]

    def bare(self, split: str) -> HeadInputs:
        """A split without vectors."""
        if split == OUT_OF_FOLD:
            return replace(self.bare("train").take(self._data.splits["train"].own_rows), split=split)
        return HeadInputs(split, self._data.splits[split], self._splits[split].tokens, self._targets[split], ())

    def _with_vectors(self, split: HeadInputs, inputs: Inputs, pooling: Pooling) -> HeadInputs:
        vectors = _vectors_of(self._base, inputs, pooling)
        if self._data.task_type == "token":
            vectors = [of_text[stands_for_word(target)] for of_text, target in zip(vectors, split.targets, strict=True)]
        return replace(split, vectors=vectors)

    def _some_inputs(self, pooling: Pooling, max_rows: int) -> HeadInputs:
        train, task_type = self.bare("train"), self._data.task_type
        words = [int(stands_for_word(target).sum()) if task_type == "token" else 1 for target in train.targets]
        if sum(words) <= MOST_VECTORS and len(words) <= max_rows:
            return self.head_inputs("train", pooling)
        order = even_order(train.examples, task_type, SPLIT_SEED)[:max_rows]
        part = train.take(np.sort(order[np.cumsum(np.array(words)[order]) <= MOST_VECTORS]))
        return self._with_vectors(part, Inputs(self._base, part.tokens), pooling)

    def baselines(self, objective: Objective, pooling: Pooling, metric: str, max_rows: int) -> Baselines:
        """The best constant answer, and the exact head of the best strength on validation rows, or else in folds.

        `max_rows` limits the head's training rows, but not below `LEAST_TEXTS`. Raises NotFinite as `head_inputs`.
        """
        max_rows = min(max(max_rows, LEAST_TEXTS), len(self._targets["train"]))
        key = (objective, pooling, metric, max_rows)
        if key not in self._found:
            started = time.perf_counter()
            names = {"validation": OUT_OF_FOLD} | {name: name for name in self._data.splits if name != "train"}
            measured = {name: self.bare(split) for name, split in names.items()}
            constant = constant_baseline(objective, self.bare("train"), measured, metric)
            fitted, exact = None, None
            if has_exact_head(objective):
                fitted = self._fit(objective, pooling, metric, max_rows)
                scores = {"validation": fitted.answers.scores}
                if "test" in measured:
                    scores["test"] = answers_of(objective, fitted.head, self.head_inputs("test", pooling)).scores
                exact = Baseline("an exact head alone on the frozen base", scores)
            folds = 0 if "validation" in self._data.splits else fitted.answers.folds if fitted else FOLDS
            rows, seconds = len(fitted.rows.examples) if fitted else 0, time.perf_counter() - started
            head, answers = (fitted.head, fitted.answers) if fitted else (None, None)
            self._found[key] = Baselines(constant, exact, head, answers, rows, seconds, folds)
        return self._found[key]

    def _fit(self, objective: Objective, pooling: Pooling, metric: str, max_rows: int) -> Fitted:
        key = (objective, pooling, metric, max_rows)
        if key not in self._fitted:
            started = time.perf_counter()
            train = self._some_inputs(pooling, max_rows)
            head, answers = self._best_head(objective, pooling, metric, train)
            self._fitted[key] = Fitted(train, head, answers, time.perf_counter() - started)
        return self._fitted[key]

    def _best_head(
        self, objective: Objective, pooling: Pooling, metric: str, train: HeadInputs
    ) -> tuple[ExactHead, Answers]:
        if "validation" not in self._data.splits:
            answers = cross_validated(objective, self._data.task_type, train, metric)
            return train.heads(objective, [answers.strength])[0], answers
        heads = train.heads(objective)
        validation = self.head_inputs("validation", pooling)
        measured = [answers_of(objective, head, validation) for head in heads]
        best = best_strength(measured, metric)
        return next(head for head in heads if head.strength == best.strength), best

    def solve(self, objective: Objective, pooling: Pooling, metric: str) -> tuple[Fitted, Verdict]:
        """The exact head on all training rows, and doubts about its answers; raises NotFinite as `head_inputs`.

        Validation rows, or else cross-validation, choose the strength. The seconds include an earlier search by the
        baselines.
        """
        fitted = self._fit(objective, pooling, metric, len(self._targets["train"]))
        started, validates = time.perf_counter() - fitted.seconds, "validation" in self._data.splits
        # Cross-validation answers the data's own rows alone.
        own_rows = fitted.rows.take(fitted.rows.examples.own_rows)
        judged, answers = self.head_inputs("validation", pooling) if validates else own_rows, fitted.answers
        if fitted.rows is not (train := self.head_inputs("train", pooling)):
            (head,) = train.heads(objective, [answers.strength])
            fitted = replace(fitted, head=head, answers=answers_of(objective, head, judged) if validates else answers)
        answers = fitted.answers
        verdict = objective.judge(judged.examples, judged.tokens, answers.logits, answers.scores, metric)
        return replace(fitted, seconds=time.perf_counter() - started), verdict


def frozen_vectors(base: Base, texts: Sequence[Text], max_length: int) -> Vectors:
    """[texts, width], an exact head's input for texts, with each text of a pair read on its own; raises NotFinite."""
    pooling: Pooling = "mean" if isinstance(texts[0], str) else SIAMESE
    tokens = base.tokenizer.reading(pooling).encode(texts, max_length)
    return np.stack(_vectors_of(base, Inputs(base, tokens), pooling))


def _vectors_of(base: Base, inputs: Inputs, pooling: Pooling) -> list[Vectors]:
    size, device = head_width(pooling, base.spec.hidden_size), base.device
    # An identity head returns its input; with the base's pooler that is the pooler's output.
    bare = {HEAD_WEIGHT: torch.eye(size, device=device), HEAD_BIAS: torch.zeros(size, device=device)}
    vectors = predict(base, fold(base, bare, pooling), inputs.features(base.config.num_layers, pooling))
    if not all(np.isfinite(vector).all() for vector in vectors):
        raise NotFinite("the base's vectors are not finite numbers")
    return vectors


class TaskInputs:
    """Data tokenized for one base and `max_length`; runs share it.

    `siamese`: each text of a pair on its own; `rule`: what is read of a longer text, which `abstain` reads like `head`.
    """

    def __init__(
        self, base: Base, data: Dataset, max_length: int, siamese: bool = False, rule: CutRule = "head"
    ) -> None:
        self.base, self.data, self.siamese, self.rule = base, data, siamese, rule
        # By `siamese` and whether both ends are read; all of them share it.
        self._variants = {(siamese, rule == "ends"): self}
        self.max_length, self._asked_length = min(max_length, base.spec.max_length), max_length
        self.objective = OBJECTIVES[data.task_type](data.labels, data.splits["train"])

    @cached_property
    def splits(self) -> dict[str, Inputs]:
        tokenizer = self.base.tokenizer.reading(SIAMESE) if self.siamese else self.base.tokenizer
        per_token = self.data.task_type in PER_TOKEN
        return {
            name: Inputs(self.base, tokenizer.encode(split.texts, self.max_length, per_token, self.rule))
            for name, split in self.data.splits.items()
        }

    @cached_property
    def targets(self) -> dict[str, list[torch.Tensor]]:
        splits = self.data.splits.items()
        return {name: self.objective.targets(split, self.splits[name].tokens) for name, split in splits}

    def reading(self, pooling: Pooling, rule: CutRule | None = None) -> "TaskInputs":
        """The same data for runs with a pooling, and a rule for long texts (None: the same one)."""
        siamese, rule = pooling == SIAMESE, rule or self.rule
        if (key := (siamese, rule == "ends")) not in self._variants:
            self._variants[key] = TaskInputs(self.base, self.data, self._asked_length, siamese, rule)
            self._variants[key]._variants = self._variants
        return self._variants[key]

    def check_targets(self) -> None:
        """Refuses data if the cut to `max_length` has left a split without any target."""
        for name, targets in self.targets.items():
            if not any(map(self.objective.has_target, targets)):
                raise InvalidData(f"{name} split: the inputs are cut before every answer; allow more tokens")

    def notes(self) -> list[str]:
        """Notes on texts that are cut or not understood, and on a maximum length below the requested one."""
        tokens = self.splits["train"].tokens
        cut = sum(text.truncated for text in tokens)
        notes = [f"{cut} of {len(tokens)} training texts are cut to {self.max_length} tokens"] if cut else []
        notes += reading_notes(self.data, self.base.tokenizer, self.max_length, tokens)
        if self._asked_length > self.max_length:
            notes.append(f"the base takes at most {self.max_length} tokens, not {self._asked_length}")
        return notes

    @cached_property
    def weighted(self) -> Objective:
        return self.objective.weighted(self.data.splits["train"])

    @cached_property
    def frozen(self) -> Frozen:
        return Frozen(self.base, self.data, self.splits, self.targets)

    @cached_property
    def exact_base(self) -> Base:
        """The same base in float32, whatever dtype it trains in."""
        return self.base.in_dtype(torch.float32)
