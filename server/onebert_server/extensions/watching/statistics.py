"""Compares counts of live answers with counts of a reference; arrays are counts, the last dimension is compared.

Only NumPy and SciPy, so simulations call these functions on thousands of windows at once. SciPy takes a second to
import, so the first window that is judged does it, and no start waits.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Numbers = NDArray[Any]

# The half of a count that every bin gets, so that no share is zero. With it the tail of PSI stays near its limit: at
# 500 answers and 60 to 1,000 rows p-values of 0.0001 are right within a fifth, Pearson's statistic is off 27 times.
_HALF = 0.5
# Below this p-value of its limit G is not trusted.
_DOUBT = 0.1
# 97.5 % of a normal distribution lies below: bounds of 95 % intervals.
_BOUND = 1.96
# A right label with fewer rows says too little about how it is answered.
LEAST_ROWS = 5


def psi(reference: Numbers, live: Numbers) -> Array:
    """Population stability index [...] of two histograms [..., bins]: sum of (p - q) ln(p / q)."""
    p, q = _shares(live), _shares(reference)
    return np.asarray(((p - q) * np.log(p / q)).sum(axis=-1))


def psi_p(reference: Numbers, live: Numbers) -> Array:
    """The probability [...] of at least this PSI if both histograms are of one distribution.

    PSI / (1/n + 1/m), with n live answers and m rows, is asymptotically chi-square with bins - 1 degrees of freedom
    (Yurdakul and Naranjo 2020). One bin gives 1.
    """
    from scipy.special import chdtrc  # noqa: PLC0415

    scale = 1 / live.sum(axis=-1) + 1 / reference.sum(axis=-1)
    return np.asarray(chdtrc(max(live.shape[-1] - 1, 1), psi(reference, live) / scale))


def less_sure_p(reference: Numbers, live: Numbers) -> float:
    """The probability that chance alone puts so many more live scores [bins] below some edge.

    The one-sided two-sample test of Smirnov, whose limit is careful for few bins.
    """
    rows, answers = reference.sum(), live.sum()
    lower = (live.cumsum() / answers - reference.cumsum() / rows).max()
    return float(np.exp(-2 * max(lower, 0.0) ** 2 * rows * answers / (rows + answers)))


def labels_p(reference: Numbers, rows: int, live: Numbers, answers: int) -> Array:
    """The probability [...] that some label's count moves this far by chance.

    Each label is a table of its own, so answers may have several labels or none. Fisher's exact test, two-sided, of the
    label with the largest G, times the number of labels that occur: right for rare labels too, and at most too careful.
    Above 0.1 the chi-square limit of G is enough, and costs a tenth.
    """
    from scipy.special import chdtrc, xlogy  # noqa: PLC0415
    from scipy.stats import hypergeom  # noqa: PLC0415

    reference, live = np.broadcast_arrays(reference, live)
    sums = reference + live
    tables = np.stack([live, answers - live, reference, rows - reference]).astype(np.float64)
    total = rows + answers
    expected = np.stack([sums * answers, (total - sums) * answers, sums * rows, (total - sums) * rows]) / total
    moved = 2 * xlogy(tables, np.divide(tables, expected, out=np.ones_like(tables), where=expected > 0)).sum(axis=0)
    furthest, tests = moved.argmax(axis=-1)[..., None], np.asarray((sums > 0).sum(axis=-1))
    p: Array = np.asarray(np.minimum(1.0, tests * chdtrc(1, moved.max(axis=-1))))
    near = p < _DOUBT
    drawn_live, both = (np.asarray(np.take_along_axis(counts, furthest, -1)[..., 0])[near] for counts in (live, sums))
    if near.any():
        drawn = hypergeom(total, both, answers)
        p[near] = np.minimum(1.0, 2 * np.minimum(drawn.cdf(drawn_live), drawn.sf(drawn_live - 1)) * tests[near])
    return p


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval, shares [labels] or []."""

    value: Array
    low: Array
    high: Array


@dataclass(frozen=True)
class Shift:
    """Estimates, true if only the shares of the right labels changed.

    Attributes:
        shares: of the right labels in the live texts.
        accuracy: the share of right answers; an answer that abstains is wrong.
        explained: the probability of live answers at least this far from the predicted ones.
    """

    shares: Interval
    accuracy: Interval
    explained: float


def estimate_shift(answered: Numbers, scores: Numbers, live: Numbers, live_scores: Numbers) -> Shift | None:
    """Estimates the shares of the right labels by black box shift estimation (Lipton et al. 2018).

    The shares solve `answered shares = P shares`, P[a, y] being the share of the rows of label y that are answered a;
    intervals are by the delta method, from the sampling errors of both sides. None if a label has under five rows, or
    if P does not tell the labels apart.

    Args:
        answered: [labels, labels + 1], rows by right and answered label, abstentions last.
        scores: [labels, bins], rows by right label and top score.
        live: [labels + 1], live answers.
        live_scores: [bins].
    """
    from scipy.optimize import nnls  # noqa: PLC0415

    rows, answers = answered.sum(axis=1).astype(np.float64), live.sum()
    if rows.min() < LEAST_ROWS or np.linalg.matrix_rank(answered) < len(rows):
        return None
    confusion, observed = (answered / rows[:, None]).T, live / answers
    # The last equation, weighted far above the others, makes the shares add up to one.
    heavy = 1e4
    solved, _ = nnls(np.vstack([confusion, np.full(len(rows), heavy)]), np.append(observed, heavy))
    shares = solved / solved.sum()
    recall = np.diag(confusion).copy()
    inverse = np.linalg.pinv(confusion)
    slopes = np.vstack([inverse, recall @ inverse])  # of the shares, and last of the accuracy, by `seen`
    direct = np.zeros((len(rows) + 1, *confusion.shape))
    direct[-1] = np.eye(*confusion.shape)
    error = np.sqrt(_live_variance(slopes, observed, answers) + _row_variance(direct, slopes, confusion, shares, rows))
    predicted = [
        1 / (shares**2 / rows).sum() * value for value in (confusion @ shares, (scores / rows[:, None]).T @ shares)
    ]
    return Shift(
        _interval(shares, error[:-1]),
        _interval(recall @ shares, error[-1]),
        min(1.0, 2 * min(_fit(predicted[0], live), _fit(predicted[1], live_scores))),
    )


def _live_variance(slopes: Array, observed: Array, answers: float) -> Array:
    """Variance by the multinomial error of the live shares."""
    return np.asarray((slopes**2 @ observed - (slopes @ observed) ** 2) / answers)


def _row_variance(direct: Array, slopes: Array, confusion: Array, shares: Array, rows: Array) -> Array:
    """Variance by the multinomial error of each column of P; a change dP moves the estimate by (direct - slope) dP."""
    by = direct - slopes[:, :, None]  # [estimates, answered, right]
    spread = (by**2 * confusion).sum(axis=1) - (by * confusion).sum(axis=1) ** 2
    return np.asarray((spread * shares**2 / rows).sum(axis=1))


def _fit(predicted: Array, live: Numbers) -> float:
    present = (predicted > 0) | (live > 0)
    return float(psi_p(predicted[present], live[present])) if present.sum() > 1 else 1.0


def _interval(value: Any, error: Any) -> Interval:
    return Interval(np.asarray(value), np.clip(value - _BOUND * error, 0, 1), np.clip(value + _BOUND * error, 0, 1))


def _shares(counts: Numbers) -> Array:
    smoothed = counts + _HALF
    return np.asarray(smoothed / smoothed.sum(axis=-1, keepdims=True))
