"""Intervals by the bootstrap: what rows like these would have given, had they been drawn again."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.stats import rankdata

CONFIDENCE = 0.95
REPEATS = 500

Floats = NDArray[np.float64]
Flags = NDArray[np.bool_]
Fitted = TypeVar("Fitted")


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
    ranks = rankdata(judged.scores, axis=0)
    rng = np.random.default_rng(0)

    def draw() -> Judged:
        rows = rng.integers(len(judged), size=len(judged))
        return Judged(ranks[rows] + rng.uniform(-0.5, 0.5, ranks.shape), judged.right[rows])

    rates = np.array([measure(fit(draw()), draw()) for _ in range(REPEATS)])
    ends = np.full((2, rates.shape[1]), np.nan)
    there = ~np.isnan(rates).all(axis=0)
    tail = 100 * (1 - CONFIDENCE) / 2
    ends[:, there] = np.nanpercentile(rates[:, there], [tail, 100 - tail], axis=0)
    return ends
