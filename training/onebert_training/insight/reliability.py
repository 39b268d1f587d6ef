"""How reliable a delta's probabilities are: the calibration curve and the expected calibration error."""

import numpy as np

from onebert_training.insight.intervals import Flags, Floats, wilson

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
    found = []
    for part in np.array_split(order, max(1, min(POINTS, len(order) // LEAST))) if len(order) else []:
        low, high = map(float, wilson(right[part].sum(), len(part)))
        means = {"confidence": float(confidence[part].mean()), "right": float(right[part].mean())}
        found.append(means | {"low": low, "high": high, "answers": len(part)})
    return found
