"""Thresholds of labels that keep a promise on new rows: a rate of false alarms, or a precision."""

from typing import NamedTuple

import numpy as np

from onebert_training.insight.intervals import Flags, Floats, Judged

# So that 1 - 0.9 and 0.1 count the same rows.
_ROUNDING = 1e-9


class Rates(NamedTuple):
    """What thresholds give, [labels + 1] each: of every label, and at the end of all labels together; NaN: no such row.

    Attributes:
        fpr: of the rows without a label, the share that has it among its answers.
        precision: of the answers with a label, the share that is right.
        recall: of the rows with a label, the share that is answered with it.
    """

    fpr: Floats
    precision: Floats
    recall: Floats


def thresholds_for_fpr(judged: Judged, rate: float) -> Floats:
    """[labels], the lowest thresholds over which at most this share of new rows without the label is expected.

    Of n such rows and a new one each is as likely as any other to be the k-th highest: over the k-th highest score of
    the n the new one is with probability k / (n + 1). Infinite where n is too small for one of them to be allowed.

    Args:
        judged: scores of labels.
        rate: above 0 and below 1.
    """
    allowed = np.floor((len(judged) + 1 - judged.right.sum(axis=0)) * rate + _ROUNDING).astype(np.int64)
    others = np.sort(np.where(judged.right, -np.inf, judged.scores), axis=0)
    found: Floats = others[np.minimum(len(judged) - allowed, len(judged) - 1), np.arange(others.shape[1])]
    return np.where(allowed > 0, found, np.inf)


def thresholds_for_precision(judged: Judged, precision: float) -> Floats:
    """[labels], the lowest thresholds over which answers are right in this share, one more wrong one counted.

    Counting one wrong answer that is not there makes up for choosing the threshold on the same rows, as in the control
    of false discoveries. Infinite where no threshold is good enough.

    Args:
        judged: scores of labels.
        precision: above 0 and below 1.
    """
    ordered, promised = _promised(judged)
    good = promised >= precision - _ROUNDING
    # Where a threshold lets the first k rows through, it is the score of the row behind them.
    behind = np.vstack([ordered[1:], np.zeros(ordered.shape[1])])
    last = len(judged) - 1 - good[::-1].argmax(axis=0)
    columns = np.arange(ordered.shape[1])
    return np.where(good.any(axis=0), behind[last, columns], np.inf)


def highest_precision(judged: Judged) -> Floats:
    """[labels], the highest precision that there is a threshold for."""
    return np.asarray(_promised(judged)[1].max(axis=0))


def _promised(judged: Judged) -> tuple[Floats, Floats]:
    """Scores from the highest, and the precision that a threshold under each would promise; 0 within equal scores."""
    order = np.argsort(-judged.scores, axis=0)
    ordered = np.take_along_axis(judged.scores, order, axis=0)
    hits = np.take_along_axis(judged.right, order, axis=0).cumsum(axis=0)
    count = np.arange(1, len(judged) + 1)[:, None]
    ends = np.vstack([ordered[:-1] > ordered[1:], np.ones((1, ordered.shape[1]), dtype=bool)])
    return ordered, np.where(ends, hits / (count + 1), 0.0)


def rates(thresholds: Floats, judged: Judged) -> Floats:
    """[3 * (labels + 1)], the fields of `Rates` one after the other.

    Args:
        thresholds: [labels].
        judged: scores of labels.
    """
    over: Flags = judged.scores > thresholds
    hits, alarms = _with_all(over & judged.right), _with_all(over & ~judged.right)
    return np.concatenate(
        [_share(alarms, _with_all(~judged.right)), _share(hits, hits + alarms), _share(hits, _with_all(judged.right))]
    )


def as_rates(numbers: Floats) -> Rates:
    """The fields of what `rates` gives."""
    return Rates(*np.split(numbers, 3))


def _with_all(flags: Flags) -> Floats:
    """[labels + 1], how many rows of each label, and of all together."""
    counts = flags.sum(axis=0).astype(np.float64)
    return np.append(counts, counts.sum())


def _share(part: Floats, whole: Floats) -> Floats:
    return np.asarray(np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0))
