"""Fits a temperature: to logits of rows that a delta was not trained on, or to those of a training's folds."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar

from onebert_encoder.answering.scores import log_softmax, own_activation
from onebert_store.file.decision import Activation, Decision
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import WATCHED, TaskType, format_for
from onebert_training.data.examples import Split
from onebert_training.data.splitting import SPLIT_SEED, fold_of
from onebert_training.tasks.objective import Logits

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Folds = NDArray[np.int64]

FOLDS = 5
MIN_ROWS = 2 * FOLDS
# A temperature at these ends means that logits are uninformative, or that all rows are answered rightly.
_LEAST, _MOST = 0.05, 20.0
_SOME = 64  # training rows that show how large logits are


@dataclass(frozen=True)
class FittedTemperature:
    """A fitted temperature and its effect on the likelihood of the right answers.

    Attributes:
        before: mean negative log likelihood of a row at the delta's present temperature.
        after: the same by cross-validation, with temperatures fitted on other rows.
        error: standard error of the difference of the two.
        is_bounded: the optimum beats both ends of the search range; if all rows are answered rightly, lower is ever
            better.
    """

    temperature: float
    before: float
    after: float
    error: float
    is_bounded: bool

    @property
    def gains(self) -> bool:
        """Whether held-out rows gain by more than the standard error."""
        return self.is_bounded and self._leads

    @property
    def softens(self) -> bool:
        """Whether they gain by answers that are less sure, also by ones without any information."""
        return self.temperature > 1 and self._leads

    @property
    def _leads(self) -> bool:
        return self.before - self.after > self.error


def losses(logits: Floats, gold: Flags, activation: Activation, temperature: float) -> Floats:
    """[rows], the negative log likelihood of the right answer, from `logits` and `gold` [rows, labels]."""
    divided = logits / temperature
    if activation == "softmax":
        return np.asarray(-log_softmax(divided)[gold])
    # -log sigmoid(z) for a label that the row has, -log sigmoid(-z) for one that it has not.
    return np.asarray(np.logaddexp(0.0, np.where(gold, -divided, divided)).sum(axis=1))


def temperature_folds(examples: Split, task_type: TaskType) -> Folds:
    """[rows], the fold of each row for `fit_temperature`; linked texts share one."""
    return fold_of(examples, task_type, FOLDS, SPLIT_SEED)


def fit_temperature(
    logits: Floats, gold: Flags, activation: Activation, fold: Folds, current: float = 1.0
) -> FittedTemperature:
    """Fits a temperature by maximum likelihood (Guo et al. 2017), cross-validates its gain; arrays [rows, labels]."""
    before = losses(logits, gold, activation, current)
    after = before.copy()
    for number in np.unique(fold) if fold.any() else ():
        fitted, held_out = fold != number, fold == number
        temperature = _best(logits[fitted], gold[fitted], activation)
        after[held_out] = losses(logits[held_out], gold[held_out], activation, temperature)
    gain = before - after
    error = float(gain.std(ddof=1) / np.sqrt(len(gain)))
    best = _best(logits, gold, activation)
    least, *ends = (losses(logits, gold, activation, temperature).mean() for temperature in (best, _LEAST, _MOST))
    return FittedTemperature(best, float(before.mean()), float(after.mean()), error, bool(least < min(ends)))


def _best(logits: Floats, gold: Flags, activation: Activation) -> float:
    # The mean loss is convex in 1 / T, so it has a single minimum over log T.
    optimum = minimize_scalar(
        lambda log: losses(logits, gold, activation, float(np.exp(log))).mean(),
        bounds=(np.log(_LEAST), np.log(_MOST)),
        method="bounded",
    )
    return float(np.exp(optimum.x))


def gold_flags(gold: NDArray[Any], labels: int) -> Flags:
    """[rows, labels], whether a row has a label, from the `gold` of a split."""
    return np.asarray(gold > 0 if gold.ndim == 2 else gold[:, None] == np.arange(labels))


def some_rows(rows: NDArray[np.int64]) -> list[int]:
    """At most `_SOME` of the rows, evenly: enough to measure `logit_size`."""
    chosen: list[int] = rows[:: max(1, -(-len(rows) // _SOME))].tolist()
    return chosen


def logit_size(logits: Sequence[Logits], activation: Activation) -> float:
    """The root mean square of logits [labels]; of a softmax, which sees differences alone, around a text's mean."""
    numbers = np.stack(logits).astype(np.float64)
    if activation == "softmax":
        numbers = numbers - numbers.mean(axis=-1, keepdims=True)
    return float(np.sqrt(np.mean(numbers**2)))


def with_temperature_of_folds(delta: Delta, logits: Sequence[Logits], rows: Split, folds: int, larger: float) -> Delta:
    """The delta with the temperature that the folds' answers to its training rows give, if they gain by one.

    Args:
        logits: of each of the task's own rows, by a model that was not trained on it.
        larger: how many times as large as these the delta's own logits are, by `logit_size` on rows that were trained
            on: folds take fewer steps, and are less sure.
    """
    manifest = delta.manifest
    if manifest.task_type not in WATCHED or len(logits) < MIN_ROWS or not np.isfinite(larger):
        return delta
    as_large = np.stack(logits).astype(np.float64) * larger
    flags, fold = gold_flags(rows.gold, len(manifest.labels)), temperature_folds(rows, manifest.task_type)
    fitted = fit_temperature(as_large, flags, own_activation(manifest), fold)
    if not (fitted.gains or fitted.softens):
        return delta
    earlier = manifest.decision.model_dump(exclude_none=True) if manifest.decision else {}
    decision = Decision(**earlier | {"temperature": fitted.temperature})
    why = {"folds": folds, "rows": len(logits), "temperature": {**asdict(fitted), "larger": larger}}
    return delta.with_manifest(
        format=format_for(decision, manifest.head, manifest.reference),
        decision=decision.model_dump(exclude_none=True),
        training={**manifest.training, "calibration": why},
    )
