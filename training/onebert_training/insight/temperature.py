"""Fits a temperature for a delta's logits, and accepts it only if held-out rows gain by it."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from sklearn.model_selection import KFold

from onebert_encoder.answering.scores import log_softmax
from onebert_store.file.decision import Activation
from onebert_training.insight.intervals import Flags, Floats

FOLDS = 5
MIN_ROWS = 2 * FOLDS
# A temperature at these ends means that logits are uninformative, or that all rows are answered rightly.
_LEAST, _MOST = 0.05, 20.0


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
        return self.is_bounded and self.before - self.after > self.error


def losses(logits: Floats, gold: Flags, activation: Activation, temperature: float) -> Floats:
    """[rows], the negative log likelihood of the right answer, from `logits` and `gold` [rows, labels].

    With `softmax` each row has exactly one label; with `sigmoid` each label has its own likelihood.
    """
    divided = logits / temperature
    if activation == "softmax":
        return np.asarray(-log_softmax(divided)[gold])
    # -log sigmoid(z) for a label that the row has, -log sigmoid(-z) for one that it has not.
    return np.asarray(np.logaddexp(0.0, np.where(gold, -divided, divided)).sum(axis=1))


def fit_temperature(logits: Floats, gold: Flags, activation: Activation, current: float = 1.0) -> FittedTemperature:
    """Fits one temperature by maximum likelihood (Guo et al. 2017), and cross-validates its gain.

    `logits` and `gold` are [rows, labels] with at least `MIN_ROWS` rows.
    """
    before = losses(logits, gold, activation, current)
    after = np.empty_like(before)
    for fitted, held in KFold(FOLDS, shuffle=True, random_state=0).split(logits):
        found = _best(logits[fitted], gold[fitted], activation)
        after[held] = losses(logits[held], gold[held], activation, found)
    gain = before - after
    error = float(gain.std(ddof=1) / np.sqrt(len(gain)))
    best = _best(logits, gold, activation)
    least, *ends = (losses(logits, gold, activation, one).mean() for one in (best, _LEAST, _MOST))
    return FittedTemperature(best, float(before.mean()), float(after.mean()), error, bool(least < min(ends)))


def _best(logits: Floats, gold: Flags, activation: Activation) -> float:
    # The mean loss is convex in 1 / T, so it has a single minimum over log T.
    found = minimize_scalar(
        lambda log: losses(logits, gold, activation, float(np.exp(log))).mean(),
        bounds=(np.log(_LEAST), np.log(_MOST)),
        method="bounded",
    )
    return float(np.exp(found.x))
