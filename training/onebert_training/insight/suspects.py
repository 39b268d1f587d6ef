"""Labels that are probably wrong: confident learning (Northcutt et al. 2021) from answers of models without the row."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Indices = NDArray[np.int64]


@dataclass(frozen=True)
class Suspect:
    """A row whose label is probably another.

    Attributes:
        row: its index.
        label: index of the label that it has.
        suggested: index of the one that it probably should have.
        margin: the probability of its label less that of the suggested one; the lower, the surer.
    """

    row: int
    label: int
    suggested: int
    margin: float


def find_suspects(probabilities: Floats, gold: Indices) -> list[Suspect]:
    """Rows that are confidently of another label than the one they have, the surest first.

    A row is confidently of a label where the label's probability is at least what rows that have this label give it in
    the mean; of several such labels, of the most probable. What is left out are rows that a model merely gets wrong.

    Args:
        probabilities: [rows, labels], by models that were not trained on the row.
        gold: [rows], the labels that the rows have.
    """
    own = probabilities[np.arange(len(gold)), gold]
    rows = np.bincount(gold, minlength=probabilities.shape[1])
    # Of a label that no row has, nothing says how sure rows are of it: none is.
    mean = np.bincount(gold, weights=own, minlength=probabilities.shape[1]) / np.maximum(rows, 1)
    confident = np.where((probabilities >= mean) & (rows > 0), probabilities, -np.inf)
    other = confident.argmax(axis=1)
    found = np.flatnonzero((confident.max(axis=1) > -np.inf) & (other != gold))
    margins = own[found] - probabilities[found, other[found]]
    order = np.argsort(margins, kind="stable")
    return [
        Suspect(int(row), int(gold[row]), int(other[row]), float(margin))
        for row, margin in zip(found[order], margins[order], strict=True)
    ]
