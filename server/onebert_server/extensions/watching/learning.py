"""Learns a reference from a version's own answers, for a version whose file has none."""

from array import array
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_server.extensions.watching.alarms import judge
from onebert_server.extensions.watching.windows import Live, places_of
from onebert_server.observed import Seen
from onebert_store.file.reference import WINDOW, Reference, count_bins, score_counts

# The `split` of a reference that was learned.
ANSWERS = "answers"
# Halves of one stream are less alike than this in one case of ten.
_ALIKE = 0.1


class Half(NamedTuple):
    """Five hundred answers: their labels' counts [labels + 1], and their top scores, if they have some."""

    labels: NDArray[np.int64]
    scores: NDArray[np.float64]


Halves = tuple[Half, Half]


class Learning:
    """The answers from which a reference is learned, in two halves; one thread counts."""

    __slots__ = ("_counts", "_filled", "_older", "_places", "_scores")

    # As of a `Window` without any.
    reference: Reference | None = None
    last: Live | None = None

    def __init__(self, labels: Sequence[str]) -> None:
        self._places = places_of(labels)
        self._older: Half | None = None
        self._begin()

    @property
    def answers(self) -> int:
        """The number of answers that are held now."""
        return self._filled + (0 if self._older is None else WINDOW)

    def add(self, answers: Sequence[Seen]) -> list[Halves]:
        """Counts answers; returns both halves each time that they are full, and goes on with the newer one."""
        full: list[Halves] = []
        for answer in answers:
            for label in answer.labels:
                place = self._places.get(label)
                if place is not None:
                    self._counts[place] += 1
            if answer.score is not None:
                self._scores.append(answer.score)
            self._filled += 1
            if self._filled == WINDOW:
                older, self._older = self._older, Half(np.array(self._counts, np.int64), np.array(self._scores))
                self._begin()
                full += [] if older is None else [(older, self._older)]
        return full

    def _begin(self) -> None:
        self._counts, self._scores, self._filled = array("H", bytes(2 * len(self._places))), array("d"), 0


def learned(older: Half, newer: Half) -> Reference | None:
    """The reference of both halves; None if they are not alike, as after a first try with texts of another kind."""
    reference = _counted(WINDOW, older)
    in_bins = np.bincount(count_bins(reference.edges, newer.scores), minlength=len(reference.scores))
    judged = judge(reference, Live(WINDOW, newer.labels, in_bins, float(newer.scores.sum())))
    if judged.surer or judged.p < _ALIKE:
        return None
    both = Half(older.labels + newer.labels, np.concatenate([older.scores, newer.scores]))
    return _counted(2 * WINDOW, both)


def _counted(rows: int, answers: Half) -> Reference:
    *labels, abstained = answers.labels.tolist()
    by_score = score_counts(answers.scores) if len(answers.scores) == rows else {"edges": [], "scores": []}
    return Reference(split=ANSWERS, rows=rows, labels=labels, abstained=abstained, **by_score)
