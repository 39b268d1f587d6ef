"""When an answer should say that it does not know: by its best score or by its energy, and at which number."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from sklearn.metrics import roc_auc_score

from onebert_encoder.answering.scores import energy_of, own_activation, score
from onebert_store.file.manifest import Manifest
from onebert_training.insight.intervals import Flags, Floats, Judged

REFUSED = 0.05  # share of known texts at which it is told how many unknown ones are let through
_ROUNDING = 1e-9


@dataclass(frozen=True)
class Separation:
    """How well one number tells known texts from unknown ones.

    Attributes:
        auroc: the probability that a known text has the surer answer; one half is chance.
        let_through: of the unknown texts, the share that is answered where `REFUSED` of the known ones are refused;
            None where these are too few to say.
    """

    auroc: float
    let_through: float | None


def has_probabilities(manifest: Manifest) -> bool:
    """Whether a task's answers are probabilities of labels of whole texts, so that there is a `sureness`."""
    return manifest.task_type in ("single_label", "multi_label") and own_activation(manifest) != "none"


def sureness(logits: Floats, manifest: Manifest) -> dict[str, Floats]:
    """[texts] each, how sure answers are: by their best score, and by their energy, whose opposite it is.

    Args:
        logits: [texts, labels].
        manifest: of a task that `has_probabilities`; its decision counts.
    """
    best: Floats = score(logits, manifest).scores.max(axis=-1)
    return {"probability": best, "energy": -energy_of(logits, manifest.decision)}


def unknown_facts(known: Floats, unknown: Floats, manifest: Manifest) -> dict[str, Any]:
    """How well texts that no label is for are told from others, as JSON: their number, and by each sureness how well.

    Args:
        known: [texts, labels], logits.
        unknown: [texts, labels], at least one text.
        manifest: as for `sureness`.
    """
    sure, other = sureness(known, manifest), sureness(unknown, manifest)
    return {"texts": len(unknown), **{name: vars(separation(sure[name], other[name])) for name in sure}}


def auroc(sure: Floats, other: Floats) -> float:
    """The probability that one of `sure` is above one of `other`, equal ones half; there is one of each at least."""
    known = np.concatenate([np.ones(len(sure)), np.zeros(len(other))])
    return float(roc_auc_score(known, np.concatenate([sure, other])))


def separation(known: Floats, unknown: Floats) -> Separation:
    """How well sureness tells known texts from unknown ones, [texts] each."""
    cut = lowest_sureness(known, 1 - REFUSED)
    return Separation(auroc(known, unknown), None if cut is None else float((unknown >= cut).mean()))


def lowest_sureness(sure: Floats, coverage: float) -> float | None:
    """The number below which an answer abstains, so that at least this share of new rows is expected to be answered.

    Of n rows and a new one, the new one is below the k-th lowest of the n with probability k / (n + 1). None where n is
    too small for one of them to be refused.

    Args:
        sure: [rows], how sure each answer is.
        coverage: above 0 and below 1.
    """
    refused = int((len(sure) + 1) * (1 - coverage) + _ROUNDING)
    return float(np.partition(sure, refused - 1)[refused - 1]) if refused else None


def answered(cut: float | None, judged: Judged) -> Floats:
    """[2], the share of rows that are answered, and of these the share that is right; NaN where none is answered.

    Args:
        cut: below which an answer abstains; None: never.
        judged: one column, how sure each answer is and whether it is right.
    """
    given: Flags = judged.scores[:, 0] >= (-np.inf if cut is None else cut)
    right = judged.right[given, 0]
    return np.array([given.mean(), right.mean() if len(right) else np.nan])
