"""Is a version better than another one? By the answers of both to the same rows, at one level of error for all."""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

ShortAnswer: TypeAlias = str | float | tuple[str, ...] | tuple[tuple[int | str, ...], ...] | None
"""A label; a number; labels, sorted; spans (start, end, label) in code points, sorted; None: the version abstained."""

Verdict = Literal["better", "worse", "unproven"]

# The probability with which a version that is no better is called better, and one that is no worse worse.
LEVEL = 0.05
# A slice with fewer rows is not judged: it would use up a part of the level and could hardly prove a fall.
LEAST_ROWS = 20
# The mixing distribution is Beta(5, 5), the part above one half. If a version wins 60 % of the pairs, it is proven at
# level 0.05 after 142 pairs in the median; with 1 in place of 5 after 163, with 20 after 153 (decision 71).
_A = 5.0
# Larger evidence is no other verdict, and JSON has no infinity.
_MAX_LOG = np.log(1e300)


class Outcomes(NamedTuple):
    """Rows that two versions have answered, by which of the two is right."""

    both: int = 0
    wins: int = 0
    losses: int = 0
    neither: int = 0

    @property
    def rows(self) -> int:
        return sum(self)

    @property
    def alike(self) -> int:
        """Rows that tell nothing: both versions are right, or neither is."""
        return self.both + self.neither


def answer_from(label: Any) -> ShortAnswer:
    """Returns the answer that a label of data, of feedback or of JSON asks for; the order of its items does not count.

    Args:
        label: a label, a number, a list of labels or of spans, or None.
    """
    if not isinstance(label, list | tuple):
        return label  # type: ignore[no-any-return]
    return tuple(sorted({tuple(item) if isinstance(item, list) else item for item in label}))


def rights(right: ShortAnswer, answer: ShortAnswer, other: ShortAnswer) -> tuple[bool, bool]:
    """Whether each of two answers to a row is right.

    An answer is right if it equals the row's own: the label, all labels, or all spans. An abstention is not right. The
    number nearer to the row's is right, and both numbers are if they are equally near.
    """
    if isinstance(right, float) and isinstance(answer, float) and isinstance(other, float):
        distance, other_distance = abs(answer - right), abs(other - right)
        return distance <= other_distance, other_distance <= distance
    return answer == right, other == right


def compare(rows: Iterable[tuple[ShortAnswer, ShortAnswer, ShortAnswer]]) -> Outcomes:
    """Counts rows of (right answer, a version's answer, the other version's answer)."""
    return outcomes_of(Counter(rights(*row) for row in rows))


def outcomes_of(counts: Mapping[tuple[bool, bool], int]) -> Outcomes:
    """Returns the counts of `rights`."""
    return Outcomes(*(counts.get(pair, 0) for pair in ((True, True), (True, False), (False, True), (False, False))))


def p_value(outcomes: Outcomes) -> float:
    """The two-sided p-value of McNemar's exact test: a fair coin for each row that only one version answers rightly."""
    from scipy.special import bdtr  # noqa: PLC0415 - slow to import

    # Twice the smaller tail; an even split would count its middle twice, hence the cap at 1.
    wins, losses = outcomes.wins, outcomes.losses
    return min(1.0, 2.0 * float(bdtr(min(wins, losses), wins + losses, 0.5)))


def verdict(outcomes: Outcomes, level: float = LEVEL) -> Verdict:
    """The verdict of rows that are looked at once; each of the two errors has at most the probability `level` / 2."""
    if p_value(outcomes) > level:
        return "unproven"
    return "better" if outcomes.wins > outcomes.losses else "worse"


def e_value(wins: ArrayLike, losses: ArrayLike) -> NDArray[np.float64]:
    """The evidence [...] that a version is right more often than another where exactly one of the two is right.

    Against the null that it wins at most half of these pairs, a win rate p has the likelihood ratio
    p^wins (1 - p)^losses 2^(wins + losses), a nonnegative supermartingale that starts at 1. So has its mean over p
    from Beta(a, a), the part above one half (a mixture as in Robbins 1970). By Ville's inequality (1939) a null ever
    reaches 1/level with at most the probability `level`, however often it is looked at (Ramdas, Grünwald, Vovk and
    Shafer 2023, section 2). With the order exchanged it is the evidence that the version is worse.
    """
    from scipy.special import betainc, betaln  # noqa: PLC0415 - slow to import

    b, c = np.asarray(wins, np.float64), np.asarray(losses, np.float64)
    with np.errstate(divide="ignore"):
        # I_1/2(a + c, a + b), the mass of Beta(a + b, a + c) above one half, may be zero: no evidence at all.
        above = np.log(betainc(_A + c, _A + b, 0.5))
    log_evidence = (1 + b + c) * np.log(2) + betaln(_A + b, _A + c) - betaln(_A, _A) + above
    return np.asarray(np.exp(np.minimum(log_evidence, _MAX_LOG)))


def running_verdict(outcomes: Outcomes, level: float = LEVEL) -> Verdict:
    """The verdict of rows that keep coming, looked at as often as one likes; each of the two errors is at most `level`.

    Rows that are looked at once tell more by `verdict`.
    """
    if e_value(outcomes.wins, outcomes.losses) >= 1 / level:
        return "better"
    return "worse" if e_value(outcomes.losses, outcomes.wins) >= 1 / level else "unproven"
