"""How reliable a delta's probabilities are: the calibration curve and the expected calibration error."""

from dataclasses import dataclass

import numpy as np

from onebert_training.insight.intervals import Flags, Floats, wilson

BINS = 15  # as in the papers' tables
POINTS = 10
LEAST = 20  # answers behind a point of the curve


@dataclass(frozen=True)
class Point:
    """Answers of similar confidence: their mean, number, and the share of right ones with Wilson's interval."""

    confidence: float
    right: float
    low: float
    high: float
    answers: int


def expected_calibration_error(confidence: Floats, right: Flags, bins: int = BINS) -> float:
    """ECE (Guo et al. 2017, equation 3): the mean distance between confidence and share of right answers, over bins.

    The bins (0, 1/15], (1/15, 2/15] … have equal width and are weighted by their answers. Arrays are [n], n at least 1.
    """
    # A confidence of exactly 0 goes to the first bin.
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    gap = np.bincount(place, right, bins) - np.bincount(place, confidence, bins)
    return float(np.abs(gap).sum() / len(confidence))


def calibration_curve(confidence: Floats, right: Flags, points: int = POINTS) -> list[Point]:
    """Points of similar size by rising confidence; fewer than 2 * `LEAST` answers give one point. Arrays are [n]."""
    order = np.argsort(confidence, kind="stable")
    parts = np.array_split(order, max(1, min(points, len(order) // LEAST))) if len(order) else []
    found = []
    for part in parts:
        low, high = wilson(right[part].sum(), len(part))
        share = float(right[part].mean())
        found.append(Point(float(confidence[part].mean()), share, float(low), float(high), len(part)))
    return found
