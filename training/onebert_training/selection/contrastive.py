"""Trains a delta of few rows by labels and by contrast: texts of one label move together, others apart.

Few rows are many pairs (SetFit, Tunstall et al. 2022). SetFit trains the whole encoder by pairs and then a head; here
the base stays frozen, and both losses train a method's differences and the head at once. In training the head has an
identity on top of its matrix and returns the pooled vector before the logits, so that the maths needs no change.
"""

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.base.base import Base
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.rows import Row
from onebert_store.file.delta import HEAD_BIAS, HEAD_WEIGHT
from onebert_store.file.manifest import head_width
from onebert_training.fit.run import Run

TEMPERATURE = 0.1
STRENGTH = 1.0  # of the exact head that training starts from
PER_LABEL = 4  # rows of a label in a batch, if it has them


class ContrastiveRun(Run):
    """A run of a single_label task by cross-entropy and contrast, from the exact head on the frozen base."""

    contrastive = True

    @property
    def start(self) -> Literal["fresh", "head"]:
        return self.settings.start or "head"

    def init_values(self) -> dict[str, Tensor]:
        """The exact head has a fixed strength: few rows cannot choose one."""
        values = super().init_values()
        return values if self.start == "fresh" else self.with_head(values, self.exact_head(STRENGTH))

    def batch_at(self, step: int) -> NDArray[np.int64]:
        """Training rows of a step: equal numbers of each label if it has enough rows, and all labels that fit."""
        generator, size = np.random.default_rng([self.settings.seed, step]), self.settings.batch_size
        gold = self.data.splits["train"].gold[self.rows]
        labels = generator.permutation(np.unique(gold))
        each = max(1, min(PER_LABEL, size // 2), size // len(labels))
        drawn = self.rows[:0]
        for label in labels:
            if len(drawn) < size:
                drawn = np.concatenate([drawn, generator.permutation(self.rows[gold == label])[:each]])
        return drawn[:size]

    def fold_to_train(self, view: Base, values: Mapping[str, Tensor]) -> Row:
        """The row whose logits are the pooled vector and then the labels' logits, [h + labels]."""
        tensors, device = self.row_tensors(values), self.base.device
        size = head_width(self.pooling, self.base.spec.hidden_size)
        identity = {HEAD_WEIGHT: torch.eye(size, device=device), HEAD_BIAS: torch.zeros(size, device=device)}
        above = {name: torch.cat([eye, tensors[name]]) for name, eye in identity.items()}
        return fold(view, tensors | above, self.pooling)

    def loss(self, logits: Sequence[Tensor], rows: Sequence[int]) -> Tensor:
        size = head_width(self.pooling, self.base.spec.hidden_size)
        outputs = torch.stack(list(logits))
        gold = torch.stack([self.targets["train"][row] for row in rows]).to(outputs.device)
        # Batches balance the labels already: class weights would count rare labels twice.
        labeled = self.inputs.objective.loss(list(outputs[:, size:]), list(gold))
        return labeled + contrast(outputs[:, :size], gold)


def contrast(vectors: Tensor, gold: Tensor, temperature: float = TEMPERATURE) -> Tensor:
    """Supervised contrastive loss (Khosla et al. 2020, L_out) of `vectors` [rows, h]; 0 without equal labels."""
    directions = F.normalize(vectors.float(), dim=1)
    same = torch.eye(len(gold), dtype=torch.bool, device=gold.device)
    alike = (gold[:, None] == gold[None]) & ~same
    # Minus infinity would give NaN when multiplied by zero.
    likely = F.log_softmax((directions @ directions.T / temperature).masked_fill(same, -1e9), dim=1)
    each = (likely * alike).sum(dim=1) / alike.sum(dim=1).clamp(min=1)
    return -each.sum() / alike.any(dim=1).sum().clamp(min=1)
