"""Where a measured share or metric lies with 95 % confidence, and the rates of a choice on as many new rows."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 200
RESAMPLES_OF_CHOICES = 500
# Two standard errors of a normal distribution: 1.96.
_Z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Fitted = TypeVar("Fitted")


class Interval(NamedTuple):
    """Where a number lies with 95 % confidence."""

    low: float
    high: float


def wilson(hits: Any, of: Any) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Wilson's score interval of shares (Wilson 1927): its lower and its upper end; 0 to 1 where there is nothing.

    Args:
        hits: [...] how many of them.
        of: [...] how many there are.
    """
    hits, of = np.asarray(hits, dtype=np.float64), np.asarray(of, dtype=np.float64)
    n = np.maximum(of, 1)
    share, z2 = hits / n, _Z**2
    middle = (share + z2 / (2 * n)) / (1 + z2 / n)
    half = _Z * np.sqrt(share * (1 - share) / n + z2 / (4 * n**2)) / (1 + z2 / n)
    low, high = np.clip(middle - half, 0, 1), np.clip(middle + half, 0, 1)
    return np.where(of > 0, low, 0.0), np.where(of > 0, high, 1.0)


def bootstrap(
    rows: int, measure: Callable[[NDArray[np.int64]], float], times: int = RESAMPLES, seed: int = 0
) -> Interval:
    """The percentile bootstrap's interval (Efron 1979) of what is measured on rows.

    Args:
        rows: how many there are, at least one.
        measure: of row indices [rows], some of them several times; NaN where they have no such number, which is left
            out.
        times: how often rows are drawn with replacement.
        seed: draws them.

    Returns:
        The interval; NaN to NaN where nothing was measured, or the same by every draw, as where all rows are answered
        rightly: they do not say how far other rows would be from that.
    """
    draw = np.random.default_rng(seed)
    found = np.array([measure(draw.integers(0, rows, rows)) for _ in range(times)])
    found = found[~np.isnan(found)]
    if not len(found) or np.ptp(found) == 0:
        return Interval(float("nan"), float("nan"))
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(found, [outside, 1 - outside])
    return Interval(float(low), float(high))


@dataclass(frozen=True)
class Judged:
    """Scores, and which of them are right.

    Attributes:
        scores: [rows, columns]; a column is a label, or how sure an answer is.
        right: [rows, columns], whether the row has the label, or whether its answer is right.
    """

    scores: Floats
    right: Flags

    def __len__(self) -> int:
        return len(self.scores)


def interval_on_new_rows(
    judged: Judged, fit: Callable[[Judged], Fitted], measure: Callable[[Fitted, Judged], Floats]
) -> Floats:
    """[2, rates], between which the rates on as many new rows lie in `CONFIDENCE` of all cases; NaN: there is none.

    Rows are drawn from these twice: what is fitted on the first draw is measured on the second. So the intervals hold
    both what the choice of a threshold owes to chance and what the rows that it is measured on do.

    Args:
        judged: the rows.
        fit: chooses something by the order of the scores alone, as thresholds.
        measure: rates, [rates], of what was chosen.
    """
    # Only the order of scores counts. A drawn row takes a random place around its rank: in a draw with rows twice many
    # scores would be equal, which new rows are not, and the share over one of them would come out too small.
    ranks = stats.rankdata(judged.scores, axis=0)
    rng = np.random.default_rng(0)

    def draw() -> Judged:
        rows = rng.integers(len(judged), size=len(judged))
        return Judged(ranks[rows] + rng.uniform(-0.5, 0.5, ranks.shape), judged.right[rows])

    rates = np.array([measure(fit(draw()), draw()) for _ in range(RESAMPLES_OF_CHOICES)])
    ends = np.full((2, rates.shape[1]), np.nan)
    there = ~np.isnan(rates).all(axis=0)
    tail = 100 * (1 - CONFIDENCE) / 2
    ends[:, there] = np.nanpercentile(rates[:, there], [tail, 100 - tail], axis=0)
    return ends
