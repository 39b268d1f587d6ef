"""Where a measured share or metric lies with 95 % confidence, and the rates of a choice on as many new rows."""

from collections.abc import Callable, Sequence
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
Indices = NDArray[np.int64]
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

    Two things are measured again and again, and the wider interval counts. What is chosen anew on rows that are drawn
    from these, on others: so a rate varies that the choice aims at. And what these rows chose, on rows that are drawn
    from a draw: so a rate varies that it does not aim at, of which these rows are an estimate, and new rows another.

    Args:
        judged: the rows.
        fit: chooses something by the order of the scores alone, as thresholds.
        measure: rates, [rates], of what was chosen.
    """
    # Only the order of scores counts. A drawn row takes a random place around its rank: in a draw with rows twice many
    # scores would be equal, which new rows are not, and the share over one of them would come out too small. Scores
    # that several rows have, as one text has in each of them, stay equal: new rows will have them, too.
    ranks = stats.rankdata(judged.scores, axis=0)
    single = stats.rankdata(judged.scores, "min", axis=0) == stats.rankdata(judged.scores, "max", axis=0)
    rng, chosen = np.random.default_rng(0), fit(Judged(ranks, judged.right))

    def draw() -> Judged:
        rows = rng.integers(len(judged), size=len(judged))
        return Judged(ranks[rows] + single[rows] * rng.uniform(-0.5, 0.5, ranks.shape), judged.right[rows])

    def redraw() -> Judged:
        rows = rng.integers(len(judged), size=len(judged))[rng.integers(len(judged), size=len(judged))]
        return Judged(ranks[rows], judged.right[rows])

    anew = _ends([measure(fit(draw()), draw()) for _ in range(RESAMPLES_OF_CHOICES)])
    kept = _ends([measure(chosen, redraw()) for _ in range(RESAMPLES_OF_CHOICES)])
    return np.stack([np.fmin(anew[0], kept[0]), np.fmax(anew[1], kept[1])])


def _ends(rates: Sequence[Floats]) -> Floats:
    """[2, rates], the ends of the middle `CONFIDENCE` of each rate; NaN where it was never there."""
    found = np.array(rates)
    ends = np.full((2, found.shape[1]), np.nan)
    there = ~np.isnan(found).all(axis=0)
    tail = 100 * (1 - CONFIDENCE) / 2
    ends[:, there] = np.nanpercentile(found[:, there], [tail, 100 - tail], axis=0)
    return ends
