"""Labels that are probably wrong: confident learning (Northcutt et al. 2021) from answers of models without the row."""

from dataclasses import dataclass

import numpy as np

from onebert_training.insight.intervals import Floats, Indices


@dataclass(frozen=True)
class Suspect:
    """A row whose label is probably another.

    Attributes:
        row: its index.
        label: index of the label that it has.
        suggested: index of the most probable one.
        ratio: the probability of the label that it has by that of the suggested one; the lower, the surer.
    """

    row: int
    label: int
    suggested: int
    ratio: float


def find_suspects(probabilities: Floats, gold: Indices, folds: Indices) -> list[Suspect]:
    """Rows of which another label than theirs is the most probable, the surest first, as many as are probably wrong.

    How many that are, rows tell that are confidently of a label (`wrong_labels`). Which, the ratio of two probabilities
    tells: where labels are many, their difference is small for rows that no label fits, too. A row whose label no other
    fold has is no suspect: what answered it does not know the label.

    Args:
        probabilities: [rows, labels], by models that were not trained on the row.
        gold: [rows], the labels that the rows have.
        folds: [rows], each was answered by what was trained on the rows of the other folds.
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
    """How many labels are probably wrong, by the confident joint (equations 1 to 3 of the paper).

    A row is confidently of a label where the label's probability is at least what rows that have this label give it in
    the mean; of several such labels, of the most probable. Of the rows with one label, the share that is confidently of
    another, among those that are confidently of any, is taken to be the share of all of them.

    Args:
        probabilities: [rows, labels], by models that were not trained on the row.
        gold: [rows], the labels that the rows have.
    """
    labels = probabilities.shape[1]
    own = probabilities[np.arange(len(gold)), gold]
    rows = np.bincount(gold, minlength=labels)
    # Of a label that no row has, nothing says how sure rows are of it: none is.
    mean = np.bincount(gold, weights=own, minlength=labels) / np.maximum(rows, 1)
    confident = np.where((probabilities >= mean) & (rows > 0), probabilities, -np.inf)
    sure, named = confident.max(axis=1) > -np.inf, confident.argmax(axis=1)
    of_any = np.bincount(gold[sure], minlength=labels)
    of_another = np.bincount(gold[sure & (named != gold)], minlength=labels)
    return float((rows * of_another / np.maximum(of_any, 1)).sum())
