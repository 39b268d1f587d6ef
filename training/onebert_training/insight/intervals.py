"""95 % confidence intervals of shares and metrics, and of the rates that fitted thresholds reach on new rows."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy import stats

CONFIDENCE = 0.95
RESAMPLES = 200
RESAMPLES_OF_CHOICES = 500
# 1.96 standard errors of a normal distribution.
_Z = float(stats.norm.ppf((1 + CONFIDENCE) / 2))

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Indices = NDArray[np.int64]
Fitted = TypeVar("Fitted")


class Interval(NamedTuple):
    """A 95 % confidence interval."""

    low: float
    high: float


UNKNOWN = Interval(float("nan"), float("nan"))


def plain(number: float) -> float | None:
    """The number, or None for NaN and infinity, which JSON does not have."""
    return float(number) if np.isfinite(number) else None


def wilson(hits: int, of: int) -> Interval:
    """Wilson's score interval of the share `hits` / `of` (Wilson 1927); 0 to 1 when `of` is 0."""
    if not of:
        return Interval(0.0, 1.0)
    # scipy's `binomtest` computes an exact p-value first, which takes milliseconds for each label.
    share, z2 = float(hits / of), _Z**2
    middle = share + z2 / (2 * of)
    half = _Z * math.sqrt(share * (1 - share) / of + z2 / (4 * of**2))
    return Interval(max(0.0, (middle - half) / (1 + z2 / of)), min(1.0, (middle + half) / (1 + z2 / of)))


def bootstrap(
    rows: int, measure: Callable[[NDArray[np.int64]], float], times: int = RESAMPLES, seed: int = 0
) -> Interval:
    """Percentile bootstrap (Efron 1979) of `measure` on [rows] indices; NaN to NaN if all are NaN or equal."""
    draw = np.random.default_rng(seed)
    samples = np.array([measure(draw.integers(0, rows, rows)) for _ in range(times)])
    samples = samples[~np.isnan(samples)]
    if not len(samples) or np.ptp(samples) == 0:
        return UNKNOWN
    outside = (1 - CONFIDENCE) / 2
    low, high = np.quantile(samples, [outside, 1 - outside])
    return Interval(float(low), float(high))


@dataclass(frozen=True)
class ScoredRows:
    """[rows, columns] scores and whether they are right; a column is a label, or how sure an answer is."""

    scores: Floats
    right: Flags

    def __len__(self) -> int:
        return len(self.scores)


def interval_on_new_rows(
    sample: ScoredRows, fit: Callable[[ScoredRows], Fitted], measure: Callable[[Fitted, ScoredRows], Floats]
) -> Floats:
    """[2, rates]: the `CONFIDENCE` interval of rates on new samples of the same size; NaN where a rate is undefined.

    Two bootstraps run, and the wider interval counts. The first fits on one resample and measures on another; it covers
    the rates that the fit aims at. The second measures this sample's fit on a resample of a resample; it covers the
    other rates, which these rows only estimate and new rows estimate again. `fit` may depend on the order of scores
    only.
    """
    # Only the order of scores counts. A drawn row moves to a random place around its rank: repeats of a row would tie,
    # which distinct new rows do not, and the share above a tied score would come out too small. Scores that tie in the
    # sample itself (one text in several rows) stay tied, since they tie in new rows as well.
    ranks = stats.rankdata(sample.scores, axis=0)
    single = stats.rankdata(sample.scores, "min", axis=0) == stats.rankdata(sample.scores, "max", axis=0)
    rng, chosen = np.random.default_rng(0), fit(ScoredRows(ranks, sample.right))

    def draw() -> ScoredRows:
        rows = rng.integers(len(sample), size=len(sample))
        return ScoredRows(ranks[rows] + single[rows] * rng.uniform(-0.5, 0.5, ranks.shape), sample.right[rows])

    def redraw() -> ScoredRows:
        rows = rng.integers(len(sample), size=len(sample))[rng.integers(len(sample), size=len(sample))]
        return ScoredRows(ranks[rows], sample.right[rows])

    anew = _ends([measure(fit(draw()), draw()) for _ in range(RESAMPLES_OF_CHOICES)])
    refitted = _ends([measure(chosen, redraw()) for _ in range(RESAMPLES_OF_CHOICES)])
    return np.stack([np.fmin(anew[0], refitted[0]), np.fmax(anew[1], refitted[1])])


def _ends(rates: Sequence[Floats]) -> Floats:
    """[2, rates], the ends of the middle `CONFIDENCE` of each rate; NaN for a rate that was never defined."""
    samples = np.array(rates)
    ends = np.full((2, samples.shape[1]), np.nan)
    defined = ~np.isnan(samples).all(axis=0)
    tail = 100 * (1 - CONFIDENCE) / 2
    ends[:, defined] = np.nanpercentile(samples[:, defined], [tail, 100 - tail], axis=0)
    return ends
