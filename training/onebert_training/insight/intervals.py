"""Intervals in which a measured share or metric lies with 95 % confidence."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 200
# Two standard errors of a normal distribution: 1.96.
_Z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))


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
        The interval; NaN to NaN where nothing was measured.
    """
    draw = np.random.default_rng(seed)
    found = np.array([measure(draw.integers(0, rows, rows)) for _ in range(times)])
    found = found[~np.isnan(found)]
    if not len(found):
        return Interval(float("nan"), float("nan"))
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(found, [outside, 1 - outside])
    return Interval(float(low), float(high))
