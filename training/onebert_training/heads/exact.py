"""Fits a head exactly on fixed vectors: a convex problem that scikit-learn solves, for several strengths."""

import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning
from sklearn.linear_model import LogisticRegression, Ridge
from threadpoolctl import ThreadpoolController
from torch import Tensor

from onebert_training.target_scale import TargetScale
from onebert_training.tasks.objective import Logits, Objective
from onebert_training.tasks.objectives import NO_TARGET, MultiLabel, Regression, SingleLabel, TokenLabel

# Falling: each fit starts at the end of the one before, and a strongly penalized head is found quickly.
STRENGTHS = (10.0, 3.0, 1.0, 0.3, 0.1, 0.03, 0.01)

# The logit of a label without a training row. The other labels' logits have mean 0 for any text, so the best of them is
# at least 0 and this label gets a probability of 2e-9 at most.
NEVER = -20.0

# At scikit-learn's tolerance of 1e-4, heads of small strengths are far from their minimum: a tenth of the probabilities
# would differ by more than 0.05 from another path to the same head (decision 45).
_TOLERANCE, _ITERATIONS = 1e-5, 1000

_LIBRARIES = ThreadpoolController()

Vectors = NDArray[np.float32]
Maps = Iterator[tuple[NDArray[np.float64], NDArray[np.float64]]]


@dataclass(frozen=True)
class ExactHead:
    """A head whose outputs the target scale turns into a regression's numbers.

    Attributes:
        weight: [labels, h] float32.
        bias: [labels] float32.
        strength: weight of the penalty, half the squared norm of `weight`, relative to the sum of the losses of all
            rows (and, in a multi_label task, labels), for vectors with a mean squared distance of 1 from their mean.
    """

    weight: Vectors
    bias: Vectors
    strength: float

    def logits(self, vectors: Vectors, scale: TargetScale) -> Logits:
        """The outputs for vectors [h] or [tokens, h]; a delta with this head gives the same."""
        return np.asarray((vectors @ self.weight.T + self.bias) * np.float32(scale.spread) + np.float32(scale.mean))


@contextmanager
def one_blas_thread() -> Iterator[None]:
    """Limits NumPy, SciPy and scikit-learn to one BLAS thread, ten times faster here; PyTorch keeps its threads."""
    with _LIBRARIES.limit(limits=1, user_api="blas"):
        yield


def has_exact_head(objective: Objective) -> bool:
    """Whether `fit_heads` supports the task type; a span task has no exact head."""
    return type(objective) in _FITS


def stands_for_word(target: Tensor) -> NDArray[np.bool_]:
    """[tokens], whether a token of a per-token task stands for a labeled word."""
    return np.asarray((target != NO_TARGET).numpy())


def labeled_vectors(vectors: Sequence[Vectors], targets: Sequence[Tensor]) -> tuple[Vectors, NDArray[np.generic]]:
    """Joins examples for `fit_heads`: vectors [n, h] of texts or labeled words, and targets [n] or [n, labels]."""
    if vectors[0].ndim == 1:
        return np.stack(vectors), np.stack([target.numpy() for target in targets])
    return np.concatenate(vectors), np.concatenate([target.numpy()[stands_for_word(target)] for target in targets])


@one_blas_thread()
def fit_heads(
    objective: Objective, features: Vectors, targets: NDArray[np.generic], strengths: Sequence[float] = STRENGTHS
) -> list[ExactHead]:
    """Fits one head per strength, in their order; equal input gives equal heads.

    The objective's task type decides the model: softmax regression, one logistic regression per label, or ridge
    regression. Vectors are centered and divided by one number, which weight and bias absorb: a strength means the same
    for any width and unit of the base. Raises KeyError without `has_exact_head`.

    Args:
        features: [n, h], vectors of texts or of labeled words.
        targets: [n] label indices or numbers, or [n, labels] zeros and ones; a teacher's probabilities count as the
            labels that they answer.
        strengths: falling, so that each fit starts near its end.
    """
    # A fold of a per-token task may have no vector: the tokenizer knows no word of its texts.
    count = max(1, len(features))
    # The only copy of some hundred thousand vectors; changed in place from here on.
    mean = (features.sum(axis=0, dtype=np.float64) / count).astype(np.float32)
    scaled = features - mean
    unit = float(np.sqrt(np.vecdot(scaled, scaled).sum(dtype=np.float64) / count)) or 1.0
    scaled /= unit
    heads = []
    maps = _FITS[type(objective)](objective, scaled, targets, strengths)
    for strength, (weight, bias) in zip(strengths, maps, strict=True):
        weight, bias = weight / unit, bias - (weight / unit) @ mean  # noqa: PLW2901 - the same map in other units
        heads.append(ExactHead(weight.astype(np.float32), bias.astype(np.float32), strength))
    return heads


def _softmax(objective: Objective, features: Vectors, gold: NDArray[np.generic], strengths: Sequence[float]) -> Maps:
    """One softmax over all labels; a label without a row is never answered."""
    if gold.ndim == 2:
        gold = gold.argmax(axis=1)
    present = np.unique(gold)
    model = _logistic_regression(objective)
    for strength in strengths:
        weight = np.zeros((len(objective.labels), features.shape[1]))
        bias = np.full(len(objective.labels), NEVER)
        bias[present] = 0.0
        if len(present) == 2:
            # The difference of two labels, w / 2 for the one and -w / 2 for the other, has half the squared norm of w.
            _solve(model, strength / 2, features, gold)
            sides = np.array([[-0.5], [0.5]])
            weight[present], bias[present] = sides * model.coef_, sides[:, 0] * model.intercept_
        elif len(present) > 2:
            _solve(model, strength, features, gold)
            weight[present] = model.coef_ - model.coef_.mean(axis=0)
            bias[present] = model.intercept_ - model.intercept_.mean()
        yield weight, bias


def _one_versus_rest(
    objective: Objective, features: Vectors, gold: NDArray[np.generic], strengths: Sequence[float]
) -> Maps:
    """One logistic regression per label; a label of all rows or of no row gets its smoothed log odds."""
    gold = (gold.astype(np.float32) > 0.5).astype(np.float32)
    having = gold.sum(axis=0, dtype=np.float64)
    odds = np.log((having + 0.5) / (len(gold) - having + 0.5))
    learnable = np.flatnonzero((having > 0) & (having < len(gold))).tolist()
    models = {label: _logistic_regression(objective) for label in learnable}
    for strength in strengths:
        weight, bias = np.zeros((gold.shape[1], features.shape[1])), odds.copy()
        for label, model in models.items():
            _solve(model, strength, features, gold[:, label])
            weight[label], bias[label] = model.coef_[0], model.intercept_[0]
        yield weight, bias


def _ridge(objective: Objective, features: Vectors, gold: NDArray[np.generic], strengths: Sequence[float]) -> Maps:
    scale = objective.target_scale
    numbers = (gold.astype(np.float64) - scale.mean) / scale.spread
    # float32 sums over many vectors are too coarse for small strengths.
    exact = features.astype(np.float64)
    for strength in strengths:
        # copy_X=False lets scikit-learn center these vectors in place; they are centered already.
        model = Ridge(strength / 2, copy_X=False).fit(exact, numbers)
        yield model.coef_[None], np.array([model.intercept_])


@contextmanager
def without_class_warning() -> Iterator[None]:
    """Silences scikit-learn's warning that many labels with few rows may be numbers."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The number of unique classes is greater", UserWarning)
        yield


def _logistic_regression(objective: Objective) -> LogisticRegression:
    weight = None if objective.class_weight is None else "balanced"
    return LogisticRegression(tol=_TOLERANCE, max_iter=_ITERATIONS, warm_start=True, class_weight=weight)


def _solve(model: LogisticRegression, strength: float, features: Vectors, gold: NDArray[np.generic]) -> None:
    with without_class_warning():
        # A fit that ends early is penalized slightly more than requested; validation judges it.
        warnings.simplefilter("ignore", ConvergenceWarning)
        model.set_params(C=1 / strength).fit(features, gold)


Fit = Callable[[Objective, Vectors, NDArray[np.generic], Sequence[float]], Maps]

_FITS: Mapping[type[Objective], Fit] = {
    SingleLabel: _softmax,
    MultiLabel: _one_versus_rest,
    Regression: _ridge,
    TokenLabel: _softmax,
}
