"""Fits label thresholds that keep a false positive rate or a precision on new rows."""

from typing import NamedTuple

import numpy as np

from onebert_training.insight.intervals import Flags, Floats, Judged

# Floating point: 1 - 0.9 and 0.1 must allow the same number of rows.
_ROUNDING = 1e-9


class Rates(NamedTuple):
    """Rates of thresholds, [labels + 1] each: one per label, then all labels together; NaN where no row counts.

    `fpr` is the share of the rows without a label that are answered with it.
    """

    fpr: Floats
    precision: Floats
    recall: Floats


def thresholds_for_fpr(judged: Judged, rate: float) -> Floats:
    """[labels], the lowest thresholds that at most a share `rate` of new rows without the label is expected to exceed.

    A new row exceeds the k-th highest score of n such rows with probability k / (n + 1). Infinite where n is too small
    to allow even one.
    """
    allowed = np.floor((len(judged) + 1 - judged.right.sum(axis=0)) * rate + _ROUNDING).astype(np.int64)
    others = np.sort(np.where(judged.right, -np.inf, judged.scores), axis=0)
    found: Floats = others[np.minimum(len(judged) - allowed, len(judged) - 1), np.arange(others.shape[1])]
    return np.where(allowed > 0, found, np.inf)


def thresholds_for_precision(judged: Judged, precision: float) -> Floats:
    """[labels], the lowest thresholds with this precision, counting one extra wrong answer; infinite if none has it.

    The extra wrong answer corrects for choosing the threshold on the same rows, as in false discovery control.
    """
    ordered, promised = _promised(judged)
    good = promised >= precision - _ROUNDING
    # A threshold that lets the first k rows through is the score of row k + 1.
    behind = np.vstack([ordered[1:], np.zeros(ordered.shape[1])])
    last = len(judged) - 1 - good[::-1].argmax(axis=0)
    columns = np.arange(ordered.shape[1])
    return np.where(good.any(axis=0), behind[last, columns], np.inf)


def highest_precision(judged: Judged) -> Floats:
    """[labels], the highest precision that some threshold promises."""
    return np.asarray(_promised(judged)[1].max(axis=0))


def _promised(judged: Judged) -> tuple[Floats, Floats]:
    """Falling scores, and the precision promised by a threshold just below each; 0 inside a run of ties."""
    order = np.argsort(-judged.scores, axis=0)
    ordered = np.take_along_axis(judged.scores, order, axis=0)
    hits = np.take_along_axis(judged.right, order, axis=0).cumsum(axis=0)
    count = np.arange(1, len(judged) + 1)[:, None]
    ends = np.vstack([ordered[:-1] > ordered[1:], np.ones((1, ordered.shape[1]), dtype=bool)])
    return ordered, np.where(ends, hits / (count + 1), 0.0)


def rates(thresholds: Floats, judged: Judged) -> Floats:
    """[3 * (labels + 1)], the fields of `Rates` concatenated, from thresholds [labels]."""
    over: Flags = judged.scores > thresholds
    hits, alarms = _with_all(over & judged.right), _with_all(over & ~judged.right)
    return np.concatenate(
        [_share(alarms, _with_all(~judged.right)), _share(hits, hits + alarms), _share(hits, _with_all(judged.right))]
    )


def as_rates(numbers: Floats) -> Rates:
    """Splits the array that `rates` returns into its fields."""
    return Rates(*np.split(numbers, 3))


def _with_all(flags: Flags) -> Floats:
    """[labels + 1], row counts per label, then their sum."""
    counts = flags.sum(axis=0).astype(np.float64)
    return np.append(counts, counts.sum())


def _share(part: Floats, whole: Floats) -> Floats:
    return np.asarray(np.divide(part, whole, out=np.full(len(part), np.nan), where=whole > 0))
