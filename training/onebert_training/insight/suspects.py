"""Finds labels that are probably wrong: confident learning (Northcutt et al. 2021) on out-of-fold predictions."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import KNeighborsClassifier

from onebert_encoder.answering.scores import softmax
from onebert_training.data.examples import Split
from onebert_training.data.splitting import SPLIT_SEED, fold_of
from onebert_training.heads.baselines import FOLDS
from onebert_training.heads.exact import ExactHead, fit_heads, without_class_warning
from onebert_training.insight.intervals import Floats, Indices
from onebert_training.target_scale import TargetScale
from onebert_training.tasks.objectives import SingleLabel

_STRENGTHS = (3.0, 1.0, 0.3, 0.1)
_NEIGHBOURS = 20
_FADE = 0.2  # squared distance of unit vectors at which a neighbour's weight has fallen to 1 / e
# Neighbours are searched among at most this many rows, so that the search grows linearly with the rows.
_SEARCHED = 50_000

Vectors = NDArray[np.float32]


def folds_of(examples: Split) -> Indices:
    """[rows], the fold of each row of a single_label task; rows with the same text share a fold."""
    return fold_of(examples, "single_label", FOLDS, SPLIT_SEED)


def out_of_fold(labels: Sequence[str], vectors: Vectors, examples: Split, fold: Indices) -> Floats:
    """[rows, labels] probabilities of each row: the mean of two models that are fitted on the other folds.

    One is an exact head on `vectors` [rows, h]; its regularization maximizes the likelihood of all labels. The other
    takes the labels of the nearest rows (Bahri et al. 2020), which separates near-duplicates that no hyperplane
    separates.
    """
    objective, gold = SingleLabel(labels), examples.gold
    folds = [fold == number for number in np.unique(fold)]
    heads = [fit_heads(objective, vectors[~held_out], gold[~held_out], _STRENGTHS) for held_out in folds]
    # One regularization at a time: the probabilities of all would take several times the memory.
    likelihood = np.zeros(len(_STRENGTHS))
    for held_out, fitted in zip(folds, heads, strict=True):
        likelihood += [_log_likelihood(_of_head(head, vectors[held_out]), gold[held_out]) for head in fitted]
    probabilities = np.zeros((len(gold), len(labels)))
    for held_out, fitted in zip(folds, heads, strict=True):
        near = _of_neighbours(vectors[~held_out], gold[~held_out], vectors[held_out], len(labels))
        probabilities[held_out] = (_of_head(fitted[likelihood.argmax()], vectors[held_out]) + near) / 2
    return probabilities


def _of_head(head: ExactHead, vectors: Vectors) -> Floats:
    return softmax(head.logits(vectors, TargetScale()).astype(np.float64))


def _log_likelihood(probabilities: Floats, gold: Indices) -> float:
    of_label = probabilities[np.arange(len(gold)), gold]
    return float(np.log(np.maximum(of_label, np.finfo(np.float64).tiny)).sum())


def _of_neighbours(known: Vectors, gold: Indices, queries: Vectors, labels: int) -> Floats:
    """[rows, labels], distance-weighted label shares of the nearest known rows, by centered unit vectors."""
    rows = np.random.default_rng(SPLIT_SEED).permutation(len(known))[:_SEARCHED]
    mean = known.mean(axis=0)
    classifier = KNeighborsClassifier(
        min(_NEIGHBOURS, len(rows)),
        weights=lambda distance: np.exp(-distance / _FADE),
        algorithm="brute",
        metric="sqeuclidean",
    )
    with without_class_warning():
        classifier.fit(_unit(known[rows] - mean), gold[rows])
    shares = np.zeros((len(queries), labels))
    shares[:, classifier.classes_] = classifier.predict_proba(_unit(queries - mean))
    return shares


def _unit(vectors: Vectors) -> Vectors:
    length = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.maximum(length, np.finfo(np.float32).tiny))


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
    of_label = probabilities[np.arange(len(gold)), gold]
    rows = np.bincount(gold, minlength=labels)
    # A label without rows has no mean confidence, so no row is confidently of it.
    mean = np.bincount(gold, weights=of_label, minlength=labels) / np.maximum(rows, 1)
    confident = np.where((probabilities >= mean) & (rows > 0), probabilities, -np.inf)
    sure, named = confident.max(axis=1) > -np.inf, confident.argmax(axis=1)
    of_any = np.bincount(gold[sure], minlength=labels)
    of_another = np.bincount(gold[sure & (named != gold)], minlength=labels)
    return float((rows * of_another / np.maximum(of_any, 1)).sum())
