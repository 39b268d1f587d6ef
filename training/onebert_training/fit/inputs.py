"""A data set as every run on it reads it: tokens for one base and length, targets, and shared computations."""

from functools import cached_property

import torch

from onebert_encoder.base.base import Base
from onebert_store.errors import InvalidData
from onebert_store.file.manifest import PER_TOKEN, SIAMESE, Pooling
from onebert_training.data.dataset import Dataset
from onebert_training.fit.features import Inputs
from onebert_training.fit.frozen import Frozen
from onebert_training.tasks.objective import Objective
from onebert_training.tasks.objectives import OBJECTIVES
from onebert_training.tasks.reading import reading_notes


class TaskInputs:
    """A data set tokenized for one base and length; runs on it share tokens, targets and kept activations.

    Args:
        max_length: in tokens; cut to the base's own limit.
        siamese: whether each text of a pair is encoded on its own.
    """

    def __init__(self, base: Base, data: Dataset, max_length: int, siamese: bool = False) -> None:
        self.base, self.data, self.siamese = base, data, siamese
        self._other: TaskInputs | None = None
        self.max_length, self._asked_length = min(max_length, base.spec.max_length), max_length
        self.objective = OBJECTIVES[data.task_type](data.labels, data.splits["train"])

    @cached_property
    def splits(self) -> dict[str, Inputs]:
        tokenizer = self.base.tokenizer.reading(SIAMESE) if self.siamese else self.base.tokenizer
        per_token = self.data.task_type in PER_TOKEN
        return {
            name: Inputs(self.base, tokenizer.encode(split.texts, self.max_length, align=per_token))
            for name, split in self.data.splits.items()
        }

    @cached_property
    def targets(self) -> dict[str, list[torch.Tensor]]:
        splits = self.data.splits.items()
        return {name: self.objective.targets(split, self.splits[name].tokens) for name, split in splits}

    def reading(self, pooling: Pooling) -> "TaskInputs":
        """The same data for runs with a pooling; siamese pooling reads each text of a pair on its own."""
        if (pooling == SIAMESE) == self.siamese:
            return self
        if self._other is None:
            self._other = TaskInputs(self.base, self.data, self._asked_length, not self.siamese)
            self._other._other = self
        return self._other

    def rejoined(self) -> "TaskInputs":
        return TaskInputs(self.base, self.data.rejoined(), self._asked_length, self.siamese)

    def check_targets(self) -> None:
        """Refuses data if the cut to `max_length` has left a split without any target."""
        for name, targets in self.targets.items():
            if not any(map(self.objective.has_target, targets)):
                raise InvalidData(f"{name} split: the inputs are cut before every answer; allow more tokens")

    def notes(self) -> list[str]:
        """Notes on texts that are cut or not understood, and on a maximum length below the one asked for."""
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
        return self.base if self.base.dtype == torch.float32 else self.base.in_dtype(torch.float32)
