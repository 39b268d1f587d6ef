"""Counts the answers of one version by a hundred, and joins these parts to a sliding window; no text is kept.

With four labels a watched version takes 14 KB, with 32 labels 17 KB, its reference included (bound: `test_watch.py`).
"""

from array import array
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebert_server.observed import ABSTAINED, Seen
from onebert_store.file.reference import PART, WINDOW, Reference, count_bins

# A window slides by a part, so that a change in the middle of one is detected within a window of its start.
PARTS = WINDOW // PART


@dataclass(frozen=True, eq=False, slots=True)
class Live:
    """Answers of one version.

    Attributes:
        labels: [labels + 1], answers with each label, and last the answers that abstain.
        scores: [bins of the reference], answers by top score.
        confidence: sum of the top scores.
    """

    answers: int
    labels: NDArray[np.int64]
    scores: NDArray[np.int64]
    confidence: float


def joined(parts: Sequence[Live]) -> Live:
    """The answers of several parts."""
    labels, scores = np.sum([part.labels for part in parts], axis=0), np.sum([part.scores for part in parts], axis=0)
    return Live(sum(part.answers for part in parts), labels, scores, sum(part.confidence for part in parts))


def live_of(reference: Reference, bins: int) -> Live:
    """The answers of a reference; without bins, of their labels alone."""
    labels, scores = np.array([*reference.labels, reference.abstained]), np.array(reference.scores[:bins], np.int64)
    return Live(reference.rows, labels, scores, (reference.confidence or 0.0) * reference.rows)


def places_of(labels: Sequence[str]) -> Mapping[str, int]:
    """The place of each label's count; abstentions come last."""
    return {ABSTAINED: len(labels)} | {label: place for place, label in enumerate(labels)}


class Segment:
    """Up to a hundred answers: counts [labels + 1] and top scores."""

    __slots__ = ("answers", "labels", "scores")

    def __init__(self, size: int) -> None:
        self.answers, self.labels, self.scores = 0, array("H", bytes(2 * size)), array("d")

    def add(self, answers: list[Seen], places: Mapping[str, int]) -> list[Seen]:
        """Counts answers until the part is full; returns the others."""
        room = PART - self.answers
        self.answers += len(answers[:room])
        for answer in answers[:room]:
            for label in answer.labels:
                place = places.get(label)
                if place is not None:
                    self.labels[place] += 1
            if answer.score is not None:
                self.scores.append(answer.score)
        return answers[room:]

    def counted(self, edges: Sequence[float], bins: int) -> Live:
        """The part by the bins of a reference; scores are not counted without bins."""
        scores = np.array(self.scores if bins else ())
        in_bins = np.bincount(count_bins(edges, scores), minlength=bins)
        return Live(self.answers, np.array(self.labels, np.int64), in_bins, float(scores.sum()))
