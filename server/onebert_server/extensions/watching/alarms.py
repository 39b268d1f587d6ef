"""Judges windows: which answers differ too much from the reference, by how many false alarms a month are allowed."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from onebert_server.contract.status import LabelShift
from onebert_server.extensions.watching import statistics
from onebert_server.extensions.watching.statistics import Shift
from onebert_server.extensions.watching.windows import Live
from onebert_server.observed import ABSTAINED
from onebert_store.file.reference import Reference

MONTH = 30 * 86400.0
# Below this number of answers PSI is too far from its chi-square limit.
LEAST_ANSWERS = 200
# An alarm ends when chance makes a window at least this unlike in one case of a hundred.
OVER = 0.01
# If shares of labels predict the answers less well than this, they are not the cause.
UNEXPLAINED = 0.001

SHARES, OTHER_CAUSE = "label_shares", "other"

# The budget is spent evenly over about this number of windows.
_SPREAD = 64
# No window gets more, however few windows a server has: an alarm must differ from what ends one.
_MOST = OVER / 2


class Budget:
    """Spends the allowed false alarms on windows, as they come: the sum of all levels never exceeds what has accrued.

    A level is the probability that a window without a change raises an alarm. The allowance accrues by time, and each
    window gets one part in 64 of what is left, so levels follow the traffic of all tasks without an estimate of it.
    """

    def __init__(self, a_month: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._rate = a_month / MONTH
        self._clock = clock
        self._at = clock()
        # The first windows have what accrues in an hour. An idle month is not saved up beyond a day.
        self._left, self._most = self._rate * 3600, self._rate * 86400

    def spend(self) -> float:
        """Returns the level of the next window."""
        now = self._clock()
        self._left = min(self._left + self._rate * (now - self._at), self._most)
        self._at = now
        level = min(self._left / _SPREAD, _MOST)
        self._left -= level
        return level


@dataclass(frozen=True)
class Judged:
    """A window compared with its reference.

    Attributes:
        p: the probability of a difference of this size by chance, in labels, or in scores unless they are `surer`.
        psi: of the top scores; None if they are not compared.
        surer: scores differ, and are only higher, as for texts that the version was trained on.
    """

    live: Live
    p: float
    psi: float | None
    surer: bool


def judge(reference: Reference, live: Live) -> Judged:
    """Compares labels and top scores, each at half the level."""
    counts = np.array([*reference.labels, reference.abstained])
    by_label = statistics.labels_p(counts, reference.rows, live.labels, live.answers)
    scores = np.array(reference.scores)
    if len(scores) < 2 or not live.scores.sum():
        return Judged(live, float(by_label), None, surer=False)
    by_score = float(statistics.psi_p(scores, live.scores))
    surer = by_score < OVER and statistics.less_sure_p(scores, live.scores) >= OVER
    p = min(1.0, 2 * min(float(by_label), 1.0 if surer else by_score))
    return Judged(live, p, float(statistics.psi(scores, live.scores)), surer)


def shares_of(labels: Sequence[str], reference: Reference, live: Live) -> list[LabelShift]:
    """Every label's share before and now, and that of abstentions; the one that moved furthest comes first."""
    rows = zip((*labels, ABSTAINED), (*reference.labels, reference.abstained), live.labels.tolist(), strict=True)
    shares = [
        LabelShift(label=label, reference=before / reference.rows, live=now / live.answers)
        for label, before, now in rows
    ]
    return sorted(shares, key=lambda share: -abs(share.live - share.reference))


def shift_of(reference: Reference, live: Live) -> Shift | None:
    """Estimates the shares of the right labels; None where the reference lacks tables by right label, or rows."""
    if reference.right is None:
        return None
    answered, scores = np.array(reference.right.answered), np.array(reference.right.scores)
    return statistics.estimate_shift(answered, scores, live.labels, live.scores)


def cause_of(shift: Shift | None) -> str | None:
    """The cause of a difference, as far as it is known."""
    if shift is None:
        return None
    return SHARES if shift.explained >= UNEXPLAINED else OTHER_CAUSE


def words_of(cause: str | None) -> str:
    """An alarm in words, by its cause."""
    if cause == SHARES:
        return "other shares of labels than in its training texts"
    return "unlike its training texts" if cause == OTHER_CAUSE else "unlike its reference"
