"""Metrics of plain arrays, through the objective that training measures by."""

from typing import Any

import numpy as np

from onebert_training.data.examples import Split
from onebert_training.tasks.objective import Objective
from onebert_training.tasks.objectives import OBJECTIVES


def objective(task_type: Any, num_labels: int) -> Objective:
    return OBJECTIVES[task_type]([str(i) for i in range(num_labels)])


def evaluate(task_type: Any, gold: Any, logits: np.ndarray) -> dict[str, float]:
    """Every metric of [n] or [n, C] gold labels and [n, C] logits."""
    texts = ("",) * len(gold)
    return objective(task_type, logits.shape[1]).evaluate(Split(texts, np.asarray(gold)), [], list(logits))
