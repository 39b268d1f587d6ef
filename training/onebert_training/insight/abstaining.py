"""Rules for abstaining: a cut on the best score or the energy, and how well it separates known from unknown texts."""

from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from onebert_encoder.answering.scores import energy_of, own_activation, score
from onebert_store.file.manifest import Manifest
from onebert_training.insight.intervals import Flags, Floats, Judged

REFUSED = 0.05  # share of known texts that are refused when `let_through` is measured
_ROUNDING = 1e-9


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


def answered(cut: float | None, judged: Judged) -> Floats:
    """[2]: the share of rows answered at this cut, and of right answers among them (NaN if no row is answered)."""
    given: Flags = judged.scores[:, 0] >= (-np.inf if cut is None else cut)
    right = judged.right[given, 0]
    return np.array([given.mean(), right.mean() if len(right) else np.nan])
