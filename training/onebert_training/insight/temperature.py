"""A temperature for a delta's logits: fitted on labeled rows, taken only where rows it was not fitted on gain by it."""

from dataclasses import dataclass

import numpy as np
from scipy.optimize import minimize_scalar
from sklearn.model_selection import KFold

from onebert_encoder.answering.scores import log_softmax
from onebert_store.file.decision import Activation
from onebert_training.insight.intervals import Flags, Floats

FOLDS = 5
MIN_ROWS = 2 * FOLDS
# Beyond this a temperature stands for logits that say nothing, or for rows that are all answered rightly.
_LEAST, _MOST = 0.05, 20.0


@dataclass(frozen=True)
class FittedTemperature:
    """What a temperature does for the likelihood of the right answers.

    Attributes:
        temperature: fitted on all rows.
        before: mean negative log likelihood of a row by the temperature that the delta has.
        after: the same where each row is judged by a temperature that was fitted on other rows.
        error: standard error of the difference of the two.
        is_bounded: whether it is better than the ends of what is tried. Rows that are all answered rightly would have
            it ever lower, and their answers ever surer.
    """

    temperature: float
    before: float
    after: float
    error: float
    is_bounded: bool

    @property
    def gains(self) -> bool:
        """Whether rows that a temperature was not fitted on gain by more than the standard error."""
        return self.is_bounded and self.before - self.after > self.error


def losses(logits: Floats, gold: Flags, activation: Activation, temperature: float) -> Floats:
    """[rows], the negative log likelihood of each row's right answer.

    Args:
        logits: [rows, labels].
        gold: [rows, labels], with `softmax` exactly one of each row.
        activation: `softmax`, or `sigmoid`, where each label has a likelihood of its own.
        temperature: divides the logits.
    """
    divided = logits / temperature
    if activation == "softmax":
        return np.asarray(-log_softmax(divided)[gold])
    # The logarithm of a sigmoid, of the logit where the label is there and of its opposite where it is not.
    return np.asarray(np.logaddexp(0.0, np.where(gold, -divided, divided)).sum(axis=1))


def fit_temperature(logits: Floats, gold: Flags, activation: Activation, current: float = 1.0) -> FittedTemperature:
    """Fits one temperature by the likelihood of the right answers (Guo et al. 2017), and tells what it brings.

    Args:
        logits: [rows, labels], of at least `MIN_ROWS` rows.
        gold: [rows, labels].
        activation: `softmax` or `sigmoid`.
        current: the temperature that the delta has.
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
    # The mean loss is convex in 1 / T and so has one valley over log T.
    found = minimize_scalar(
        lambda log: losses(logits, gold, activation, float(np.exp(log))).mean(),
        bounds=(np.log(_LEAST), np.log(_MOST)),
        method="bounded",
    )
    return float(np.exp(found.x))
