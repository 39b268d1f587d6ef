"""How much a delta's probabilities are worth: the calibration curve and the expected calibration error."""

from dataclasses import dataclass

import numpy as np

from onebert_training.insight.intervals import Flags, Floats, wilson

BINS = 15  # as in the papers' tables
POINTS = 10
LEAST = 20  # answers behind a point of the curve


@dataclass(frozen=True)
class Point:
    """Answers of about one confidence.

    Attributes:
        confidence: its mean.
        right: the share of them that is right.
        low, high: where that share lies, by Wilson's interval.
        answers: how many they are.
    """

    confidence: float
    right: float
    low: float
    high: float
    answers: int


def expected_calibration_error(confidence: Floats, right: Flags, bins: int = BINS) -> float:
    """ECE (Guo et al. 2017, equation 3): how far, on average, the share of right answers is from their confidence.

    Bins are of one width, (0, 1/15], (1/15, 2/15] and so on; each counts by its share of the answers.

    Args:
        confidence: [n], n at least 1, between 0 and 1: the probability that an answer gives itself.
        right: [n], whether it is right.
        bins: how many bins.
    """
    # Of a confidence of exactly 0 the first bin.
    place = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)
    gap = np.bincount(place, right, bins) - np.bincount(place, confidence, bins)
    return float(np.abs(gap).sum() / len(confidence))


def calibration_curve(confidence: Floats, right: Flags, points: int = POINTS) -> list[Point]:
    """Points with about as many answers each, from the least to the most confident; fewer points where few answer.

    Args:
        confidence: [n].
        right: [n].
        points: how many points at most.
    """
    order = np.argsort(confidence, kind="stable")
    parts = np.array_split(order, max(1, min(points, len(order) // LEAST))) if len(order) else []
    found = []
    for part in parts:
        low, high = wilson(right[part].sum(), len(part))
        share = float(right[part].mean())
        found.append(Point(float(confidence[part].mean()), share, float(low), float(high), len(part)))
    return found
