"""Uneven labels: where they make a poor answer look good, and weights that count every label alike."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Where one label has more than this share of the rows, always answering it has an accuracy that looks good.
MOST = 2 / 3
# A label with less than this share of the commonest label's rows costs hardly any accuracy if it is never answered.
LEAST = 1 / 10

Counts = NDArray[np.int64]


def unevenness(counts: Counts, labels: Sequence[str], unit: str, least: float = LEAST) -> str | None:
    """Why accuracy would say little, as half a sentence; None where it says enough.

    Args:
        counts: [labels], how many rows or words have each label; labels without any are not looked at.
        labels: names of the labels.
        unit: what is counted, in the singular.
        least: the least share of the commonest label's rows that any label may have.
    """
    commonest, total = int(counts.argmax()), int(counts.sum())
    rarest = int(np.where(counts > 0, counts, total + 1).argmin())
    common = repr(labels[commonest][:40])
    if counts[commonest] > MOST * total:
        return f"{common} has {counts[commonest]:,} of {total:,} training {unit}s"
    if counts[rarest] < least * counts[commonest]:
        rare = f"{labels[rarest][:40]!r} has {counts[rarest]:,} training {unit}{'s' * int(counts[rarest] != 1)}"
        return f"{rare} and {common} {counts[commonest]:,}"
    return None


def balanced(counts: NDArray[np.integer]) -> NDArray[np.float32]:
    """[…, labels], weights whose sum over all rows is the same for every label: scikit-learn's `balanced`.

    They are n / (labels · count), n the sum and labels the number of the counts that are not 0; where a count is 0, the
    weight is 1.
    """
    present = (counts > 0).sum(axis=-1, keepdims=True)
    total = counts.sum(axis=-1, keepdims=True)
    weights = np.ones(counts.shape, dtype=np.float32)
    np.divide(total, present * counts, out=weights, where=counts > 0, casting="same_kind")
    return weights
