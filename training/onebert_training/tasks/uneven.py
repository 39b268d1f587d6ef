"""Uneven labels: do they make a poor answer look good? Also weights that count every label equally."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

# Above this share of the rows, always answering the commonest label has an accuracy that looks good.
MOST = 2 / 3
# Below this share of the commonest label's rows, never answering a label costs hardly any accuracy.
LEAST = 1 / 10

Counts = NDArray[np.int64]


def unevenness(counts: Counts, labels: Sequence[str], unit: str, least: float = LEAST) -> str | None:
    """Half a sentence on why accuracy says little about these labels; None if it says enough.

    A label with a count of 0 is ignored; `least` is the smallest acceptable share of the commonest label's count.
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
    """[…, labels], weights that give every label the same sum over all rows: scikit-learn's `balanced`.

    weight = n / (labels · count): n is the sum of the counts, labels the number of nonzero counts; 1 for a count of 0.
    """
    present = (counts > 0).sum(axis=-1, keepdims=True)
    total = counts.sum(axis=-1, keepdims=True)
    weights = np.ones(counts.shape, dtype=np.float32)
    np.divide(total, present * counts, out=weights, where=counts > 0, casting="same_kind")
    return weights
