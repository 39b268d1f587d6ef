"""Fits the rules of a decision: thresholds of labels, and a cut below which an answer abstains."""

from typing import Any, NamedTuple

import numpy as np
from sklearn.metrics import roc_auc_score

from onebert_encoder.answering.scores import energy_of, own_activation, score
from onebert_store.file.manifest import Manifest
from onebert_training.insight.intervals import Flags, Floats, ScoredRows

REFUSED = 0.05  # share of known texts that are refused when `let_through` is measured
# Floating point: 1 - 0.9 and 0.1 must allow the same number of rows.
_ROUNDING = 1e-9


class Rates(NamedTuple):
    """Rates of thresholds, [labels + 1] each: one per label, then all labels together; NaN where no row counts.

    `fpr` is the share of the rows without a label that are answered with it.
    """

    fpr: Floats
    precision: Floats
    recall: Floats


def thresholds_for_fpr(sample: ScoredRows, rate: float) -> Floats:
    """[labels], the lowest thresholds that at most a share `rate` of new rows without the label is expected to exceed.

    A new row exceeds the k-th highest score of n such rows with probability k / (n + 1). Infinite where n is too small
    to allow even one.
    """
    allowed = np.floor((len(sample) + 1 - sample.right.sum(axis=0)) * rate + _ROUNDING).astype(np.int64)
    negatives = np.sort(np.where(sample.right, -np.inf, sample.scores), axis=0)
    thresholds: Floats = negatives[np.minimum(len(sample) - allowed, len(sample) - 1), np.arange(negatives.shape[1])]
    return np.where(allowed > 0, thresholds, np.inf)


def thresholds_for_precision(sample: ScoredRows, precision: float) -> Floats:
    """[labels], the lowest thresholds with this precision, counting one extra wrong answer; infinite if none has it.

    The extra wrong answer corrects for choosing the threshold on the same rows, as in false discovery control.
    """
    ordered, promised = _promised(sample)
    good = promised >= precision - _ROUNDING
    # A threshold that lets the first k rows through is the score of row k + 1.
    behind = np.vstack([ordered[1:], np.zeros(ordered.shape[1])])
    last = len(sample) - 1 - good[::-1].argmax(axis=0)
    columns = np.arange(ordered.shape[1])
    return np.where(good.any(axis=0), behind[last, columns], np.inf)


def highest_precision(sample: ScoredRows) -> Floats:
    """[labels], the highest precision that some threshold promises."""
    return np.asarray(_promised(sample)[1].max(axis=0))


def _promised(sample: ScoredRows) -> tuple[Floats, Floats]:
    """Falling scores, and the precision promised by a threshold just below each; 0 inside a run of ties."""
    order = np.argsort(-sample.scores, axis=0)
    ordered = np.take_along_axis(sample.scores, order, axis=0)
    hits = np.take_along_axis(sample.right, order, axis=0).cumsum(axis=0)
    count = np.arange(1, len(sample) + 1)[:, None]
    ends = np.vstack([ordered[:-1] > ordered[1:], np.ones((1, ordered.shape[1]), dtype=bool)])
    return ordered, np.where(ends, hits / (count + 1), 0.0)


def rates(thresholds: Floats, sample: ScoredRows) -> Floats:
    """[3 * (labels + 1)], the fields of `Rates` concatenated, from thresholds [labels]."""
    over: Flags = sample.scores > thresholds
    hits, alarms = _with_all(over & sample.right), _with_all(over & ~sample.right)
    return np.concatenate(
        [
            _share(alarms, _with_all(~sample.right)),
            _share(hits, hits + alarms),
            _share(hits, _with_all(sample.right)),
        ]
    )


def as_rates(numbers: Floats) -> Rates:
    """Splits the array that `rates` returns into its fields."""
    return Rates(*np.split(numbers, 3))


def _with_all(flags: Flags) -> Floats:
    """[labels + 1], row counts per label, then their sum."""
    counts = flags.sum(axis=0).astype(np.float64)
    return np.append(counts, counts.sum())


def _share(part: Floats, total: Floats) -> Floats:
    return np.asarray(np.divide(part, total, out=np.full(len(part), np.nan), where=total > 0))


def has_probabilities(manifest: Manifest) -> bool:
    """Whether the answers are probabilities of labels of whole texts, so that `sureness` is defined."""
    return manifest.task_type in ("single_label", "multi_label") and own_activation(manifest) != "none"


def sureness(logits: Floats, manifest: Manifest) -> dict[str, Floats]:
    """[texts] each: the best score, and the negated energy of `logits` [texts, labels]; needs `has_probabilities`."""
    best: Floats = score(logits, manifest).scores.max(axis=-1)
    return {"probability": best, "energy": -energy_of(logits, manifest.decision)}


def unknown_facts(known: Floats, unknown: Floats, manifest: Manifest) -> dict[str, Any]:
    """AUROC and let-through share by sureness, as JSON; logits are [texts, labels], with at least one unknown text."""
    sure, other = sureness(known, manifest), sureness(unknown, manifest)
    return {"texts": len(unknown), **{name: separation(sure[name], other[name]) for name in sure}}


def auroc(sure: Floats, other: Floats) -> float:
    """The probability that one of `sure` is above one of `other`; ties count half. Both need at least one entry."""
    known = np.concatenate([np.ones(len(sure)), np.zeros(len(other))])
    return float(roc_auc_score(known, np.concatenate([sure, other])))


def separation(known: Floats, unknown: Floats) -> dict[str, float | None]:
    """How well sureness separates known from unknown texts; both arrays are [texts].

    `auroc` is the probability that a known text has the surer answer (0.5 is chance). `let_through` is the share of
    unknown texts answered when `REFUSED` of the known ones are refused; None with too few known texts to place that
    cut.
    """
    cut = lowest_sureness(known, 1 - REFUSED)
    return {"auroc": auroc(known, unknown), "let_through": None if cut is None else float((unknown >= cut).mean())}


def lowest_sureness(sure: Floats, coverage: float) -> float | None:
    """The cut below which an answer abstains; at least a share `coverage` of new rows is expected to be answered.

    A new row is below the k-th lowest of n rows with probability k / (n + 1). None if n is too small to refuse even
    one.
    """
    refused = int((len(sure) + 1) * (1 - coverage) + _ROUNDING)
    return float(np.partition(sure, refused - 1)[refused - 1]) if refused else None


def coverage_and_accuracy(cut: float | None, sample: ScoredRows) -> Floats:
    """[2]: the share of rows answered at this cut, and of right answers among them (NaN if no row is answered).

    The second column of `right` has the rows that may be answered at all.
    """
    passed: Flags = (sample.scores[:, 0] >= (-np.inf if cut is None else cut)) & sample.right[:, 1]
    right = sample.right[passed, 0]
    return np.array([passed.mean(), right.mean() if len(right) else np.nan])
