"""What is measured: every metric that makes sense for a task type, and which of them decides."""

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from scipy import stats
from sklearn.metrics import (
    accuracy_score,
    f1_score,
    matthews_corrcoef,
    mean_absolute_error,
    r2_score,
)

from onebert_store.errors import InvalidData, NotFinite

PRIMARY: Mapping[str, str] = {"single_label": "accuracy", "multi_label": "micro_f1", "regression": "pearson"}
LOWER_IS_BETTER = frozenset({"mae"})

_ALIASES = {"matthews_correlation": "matthews", "mcc": "matthews", "acc": "accuracy"}


def metric_names(task_type: str, num_labels: int) -> tuple[str, ...]:
    """The metrics that `evaluate_predictions` reports."""
    if task_type == "regression":
        return ("pearson", "spearman", "r2", "mae")
    if task_type == "multi_label":
        return ("micro_f1", "macro_f1", "accuracy")
    return ("accuracy", "macro_f1", "matthews", *(("f1",) if num_labels == 2 else ()))


def primary_metric(task_type: str, num_labels: int, wanted: str | None = None) -> str:
    """The deciding metric: `wanted` (of `f1/accuracy` the first counts), or the usual one of the task type.

    Raises:
        InvalidData: the task type has no such metric.
    """
    names = metric_names(task_type, num_labels)
    name = (wanted or PRIMARY[task_type]).split("/")[0].strip().lower()
    name = _ALIASES.get(name, name)
    if name not in names:
        raise InvalidData(f"the metrics of a {task_type} task with {num_labels} labels are {', '.join(names)}")
    return name


def is_better(metric: str, score: float, best: float | None) -> bool:
    """Whether `score` beats the best so far; equal is not better."""
    if best is None:
        return True
    return score < best if metric in LOWER_IS_BETTER else score > best


def evaluate_predictions(
    task_type: str, gold: NDArray[np.generic] | Sequence[object], logits: NDArray[np.floating]
) -> dict[str, float]:
    """Compares logits, or any scores of the same order, with gold labels.

    Args:
        task_type: `single_label`, `multi_label` or `regression`.
        gold: [n] label indices, [n, C] zeros and ones, or [n] numbers.
        logits: [n, C]; the positive class of F1 is label 1; a label of a multi_label task is on above 0.

    Raises:
        NotFinite: a logit is NaN or infinite.
    """
    gold = np.asarray(gold)
    logits = np.asarray(logits, dtype=np.float64)
    if not np.isfinite(logits).all():
        raise NotFinite("a logit is NaN or infinite")
    if task_type == "regression":
        return _regression(gold, logits[:, 0])
    if task_type == "multi_label":
        return _multi_label(gold, logits > 0)
    predicted = logits.argmax(axis=1)
    scores = {
        "accuracy": float(accuracy_score(gold, predicted)),
        "macro_f1": float(f1_score(gold, predicted, average="macro", zero_division=0)),
        # With one class on both sides there is no correlation, and scikit-learn would warn.
        "matthews": float(matthews_corrcoef(gold, predicted)) if np.unique([gold, predicted]).size > 1 else 0.0,
    }
    if logits.shape[1] == 2:
        scores["f1"] = float(f1_score(gold, predicted, zero_division=0))
    return scores


def _multi_label(gold: NDArray[np.generic], on: NDArray[np.bool_]) -> dict[str, float]:
    # scikit-learn takes one column for two classes and would count being right about "off".
    labels = [1] if on.shape[1] == 1 else None
    return {
        "micro_f1": float(f1_score(gold, on, labels=labels, average="micro", zero_division=0)),
        "macro_f1": float(f1_score(gold, on, labels=labels, average="macro", zero_division=0)),
        "accuracy": float(accuracy_score(gold, on)),
    }


def _regression(gold: NDArray[np.generic], predicted: NDArray[np.floating]) -> dict[str, float]:
    """A correlation with something constant counts as 0."""
    varies = np.ptp(gold) > 0 and np.ptp(predicted) > 0
    return {
        "pearson": float(stats.pearsonr(gold, predicted).statistic) if varies else 0.0,
        "spearman": float(stats.spearmanr(gold, predicted).statistic) if varies else 0.0,
        "r2": float(r2_score(gold, predicted)) if len(gold) > 1 else 0.0,
        "mae": float(mean_absolute_error(gold, predicted)),
    }
