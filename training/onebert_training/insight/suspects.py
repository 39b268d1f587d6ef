"""Finds labels that are probably wrong: confident learning (Northcutt et al. 2021) on out-of-fold predictions."""

from dataclasses import dataclass

import numpy as np

from onebert_training.insight.intervals import Floats, Indices


@dataclass(frozen=True)
class Suspect:
    """A row with a probably wrong label; `ratio` is its label's probability divided by the suggested label's."""

    row: int
    label: int
    suggested: int
    ratio: float


def find_suspects(probabilities: Floats, gold: Indices, folds: Indices) -> list[Suspect]:
    """The rows whose most probable label is not theirs, surest first; `wrong_labels` decides how many.

    Rows are ranked by the ratio of two probabilities: with many labels, the difference is small as well for rows that
    fit no label. A row is no suspect if all rows with its label are in its own fold, since its model never saw the
    label.

    Args:
        probabilities: [rows, labels], by models that were trained on the other folds.
        gold: [rows], label indices.
        folds: [rows].
    """
    in_fold = np.zeros((gold.max() + 1, folds.max() + 1), dtype=np.int64)
    np.add.at(in_fold, (gold, folds), 1)
    judged = in_fold.sum(axis=1)[gold] > in_fold[gold, folds]
    best = probabilities.argmax(axis=1)
    ratio = probabilities[np.arange(len(gold)), gold] / probabilities.max(axis=1)
    other = np.flatnonzero(judged & (best != gold))
    wrong = round(wrong_labels(probabilities[judged], gold[judged]))
    order = other[np.argsort(ratio[other], kind="stable")][:wrong]
    return [Suspect(int(row), int(gold[row]), int(best[row]), float(ratio[row])) for row in order]


def wrong_labels(probabilities: Floats, gold: Indices) -> float:
    """Estimates the number of wrong labels by the confident joint (equations 1 to 3 of the paper).

    A row is confidently of a label if the label's probability reaches its mean over the rows that have the label; among
    several such labels the most probable one counts. For each label, the share of confident rows that are confidently
    of another label is extrapolated to all rows with the label. Arguments are as in `find_suspects`.
    """
    labels = probabilities.shape[1]
    own = probabilities[np.arange(len(gold)), gold]
    rows = np.bincount(gold, minlength=labels)
    # A label without rows has no mean confidence, so no row is confidently of it.
    mean = np.bincount(gold, weights=own, minlength=labels) / np.maximum(rows, 1)
    confident = np.where((probabilities >= mean) & (rows > 0), probabilities, -np.inf)
    sure, named = confident.max(axis=1) > -np.inf, confident.argmax(axis=1)
    of_any = np.bincount(gold[sure], minlength=labels)
    of_another = np.bincount(gold[sure & (named != gold)], minlength=labels)
    return float((rows * of_another / np.maximum(of_any, 1)).sum())
