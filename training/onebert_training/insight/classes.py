"""Precision, recall and F1 of each class, the confusions between classes, and how reliable confidences are."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from seqeval.metrics.sequence_labeling import get_entities

from onebert_training.insight.intervals import Flags, Floats, Indices, Interval, wilson

MATRIX_LABELS = 20  # a larger matrix is unreadable
MAX_PAIRS = 20


@dataclass(frozen=True)
class Counts:
    """[classes] counts: right answers (`hits`), all answers with the class, and items that have it (`support`)."""

    names: tuple[str, ...]
    hits: Indices
    answered: Indices
    support: Indices

    def facts(self) -> list[dict[str, Any]]:
        """Shares of classes with answers or support, with 95 % intervals; 0/0 is 0 as in scikit-learn."""
        counts = zip(self.names, self.hits.tolist(), self.answered.tolist(), self.support.tolist(), strict=True)
        return [_class_facts(*of_class) for of_class in counts if of_class[2] or of_class[3]]


def _class_facts(label: str, hits: int, answered: int, support: int) -> dict[str, Any]:
    # F1 = 2 J / (1 + J) with J = hits / items answered with the class or having it; this maps J's interval to F1.
    jaccard = wilson(hits, support + answered - hits)
    return {
        "label": label,
        "support": support,
        "answered": answered,
        "precision": _share(hits, answered, wilson(hits, answered)),
        "recall": _share(hits, support, wilson(hits, support)),
        "f1": _share(2 * hits, answered + support, Interval(*(2 * end / (1 + end) for end in jaccard))),
    }


def _share(hits: int, of: int, ends: Interval) -> dict[str, float]:
    return {"value": hits / of if of else 0.0, "low": ends.low, "high": ends.high}


def count_indices(gold: Indices, answered: Indices, names: Sequence[str]) -> Counts:
    """Counts of [n] class indices; an answer below 0 belongs to no class."""
    hits = np.bincount(gold[gold == answered], minlength=len(names))
    answer_counts = np.bincount(answered[answered >= 0], minlength=len(names))
    return Counts(tuple(names), hits, answer_counts, np.bincount(gold, minlength=len(names)))


def count_indicators(gold: Flags, answered: Flags, names: Sequence[str]) -> Counts:
    """Counts of [n, classes] flags."""
    return Counts(tuple(names), (gold & answered).sum(axis=0), answered.sum(axis=0), gold.sum(axis=0))


def count_entities(gold: Sequence[Sequence[str]], answered: Sequence[Sequence[str]]) -> tuple[Counts, Indices]:
    """Entities by type, and [texts, 3]: in common, answered, right; as seqeval's default mode parses them."""
    sides = [[set(get_entities(list(tags))) for tags in side] for side in (gold, answered)]
    names = tuple(sorted({kind for side in sides for entities in side for kind, _, _ in entities}))
    place = {name: i for i, name in enumerate(names)}
    totals = np.zeros((3, len(names)), dtype=np.int64)
    by_text = np.zeros((len(gold), 3), dtype=np.int64)
    for text, (right, predicted) in enumerate(zip(*sides, strict=True)):
        for row, entities in enumerate((right & predicted, predicted, right)):
            by_text[text, row] = len(entities)
            for kind, _, _ in entities:
                totals[row, place[kind]] += 1
    return Counts(names, *totals), by_text


def confusion_matrix(gold: Indices, answered: Indices, classes: int) -> Indices:
    """[classes, classes]: how often the row's class is answered with the column's; skips answers below 0."""
    valid = answered >= 0
    return np.bincount(gold[valid] * classes + answered[valid], minlength=classes**2).reshape(classes, classes)


def top_pairs(gold: Indices, answered: Indices, limit: int = MAX_PAIRS) -> list[tuple[int, int, int]]:
    """The most frequent confusions in [n] indices, as (right class, answered class, count); skips answers below 0."""
    wrong = (gold != answered) & (answered >= 0)
    pairs, often = np.unique(np.stack([gold[wrong], answered[wrong]]), axis=1, return_counts=True)
    order = np.argsort(-often, kind="stable")[:limit]
    return [(int(pairs[0, i]), int(pairs[1, i]), int(often[i])) for i in order]


BINS = 15  # as in the papers' tables
POINTS = 10
LEAST = 20  # answers behind a point of the curve


def expected_calibration_error(confidence: Floats, right: Flags) -> float:
    """ECE (Guo et al. 2017, equation 3): the mean distance between confidence and share of right answers, over bins.

    The bins (0, 1/15], (1/15, 2/15] … have equal width and are weighted by their answers. Arrays are [n], n at least 1.
    """
    # A confidence of exactly 0 goes to the first bin.
    place = np.clip(np.ceil(confidence * BINS).astype(np.int64) - 1, 0, BINS - 1)
    gap = np.bincount(place, right, BINS) - np.bincount(place, confidence, BINS)
    return float(np.abs(gap).sum() / len(confidence))


def calibration_curve(confidence: Floats, right: Flags) -> list[dict[str, float]]:
    """Points of similar size by rising confidence, as JSON; fewer than 2 * `LEAST` answers give one point.

    A point has the mean confidence of its answers, the share of right ones with Wilson's interval, and their number.
    Arrays are [n].
    """
    order = np.argsort(confidence, kind="stable")
    points = []
    for part in np.array_split(order, max(1, min(POINTS, len(order) // LEAST))) if len(order) else []:
        low, high = wilson(right[part].sum(), len(part))
        means = {"confidence": float(confidence[part].mean()), "right": float(right[part].mean())}
        points.append(means | {"low": low, "high": high, "answers": len(part)})
    return points
