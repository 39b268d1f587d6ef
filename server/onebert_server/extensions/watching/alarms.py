"""Compares a window with its reference by two tests, at one allowance of false alarms."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from onebert_server.contract.status import LabelShift
from onebert_server.extensions.watching.windows import Live
from onebert_server.observed import ABSTAINED
from onebert_store.file.reference import LEVEL, Reference

# An alarm ends when chance makes a window at least this unlike in one case of a hundred.
OVER = 0.01

LABELS, SCORES = "other labels than its reference", "less sure than its reference"


def level_of(false_alarms: float) -> float:
    """The probability below which a window is an alarm, by the false alarms that 300,000 answers may raise.

    This is the allowance (Bonferroni): windows of all versions are judged once in a hundred answers, so 3,000 times.
    """
    # An alarm differs from what ends one.
    return min(false_alarms * LEVEL, OVER / 2)


@dataclass(frozen=True)
class Judged:
    """A window compared with its reference.

    Attributes:
        label_p, score_p: the probability that chance alone moves some label this far, and makes scores this much less
            sure; 1 if scores are not compared.
    """

    live: Live
    label_p: float
    score_p: float

    @property
    def p(self) -> float:
        """The probability of a difference of this size by chance, over both tests."""
        return min(1.0, 2 * min(self.label_p, self.score_p))

    @property
    def words(self) -> str:
        """Names the test with the lower probability."""
        return LABELS if self.label_p <= self.score_p else SCORES


def judge(reference: Reference, live: Live) -> Judged:
    """Compares labels and top scores."""
    scored = bool(reference.scores) and live.scores.sum() > 0
    return Judged(live, label_p(reference, live), score_p(reference, live) if scored else 1.0)


def label_p(reference: Reference, live: Live) -> float:
    """Fisher's exact test, two-sided, of the label that moved furthest, times the number of labels that occur.

    Each label is a table of its own, so answers may have several labels or none. Two sides are twice the smaller one,
    as in `heard_move`; SciPy's `fisher_exact` has the other definition, and takes ten times as long.
    """
    from scipy.stats import hypergeom  # noqa: PLC0415 - slow to import, so the first judged window does it

    counts = np.array([*reference.labels, reference.abstained])
    both, rows, answers = counts + live.labels, reference.rows, live.answers
    moved = np.abs(live.labels / answers - counts / rows)
    share = both / (rows + answers)
    # In standard errors; a label of no answer, or of all on both sides, has not moved.
    furthest = np.divide(moved, np.sqrt(share * (1 - share)), out=np.zeros_like(moved), where=moved > 0).argmax()
    number, drawn = live.labels[furthest], (rows + answers, both[furthest], answers)
    tail = min(hypergeom.cdf(number, *drawn), hypergeom.sf(number - 1, *drawn))
    return min(1.0, float(2 * tail * np.count_nonzero(both)))


def score_p(reference: Reference, live: Live) -> float:
    """Smirnov's two-sample test: the probability that chance alone puts so many more live scores below some edge.

    By its limit, which is careful for scores in bins.
    """
    rows, answers = reference.rows, live.scores.sum()
    lower = (live.scores.cumsum() / answers - np.cumsum(reference.scores) / rows).max()
    return float(np.exp(-2 * max(lower, 0.0) ** 2 * rows * answers / (rows + answers)))


def shares_of(labels: Sequence[str], reference: Reference, live: Live) -> list[LabelShift]:
    """Shares of labels and of abstentions, before and now; the share that moved furthest comes first."""
    rows = zip((*labels, ABSTAINED), (*reference.labels, reference.abstained), live.labels.tolist(), strict=True)
    shares = [
        LabelShift(label=label, reference=before / reference.rows, live=now / live.answers)
        for label, before, now in rows
    ]
    return sorted(shares, key=lambda share: -abs(share.live - share.reference))
