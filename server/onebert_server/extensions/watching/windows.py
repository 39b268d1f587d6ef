"""Counts the answers of one version in a sliding window, as its reference counts them; no text is kept."""

from array import array
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebert_server.observed import ABSTAINED
from onebert_store.file.manifest import Manifest
from onebert_store.file.reference import Reference

# A window slides by a part, so that a change in the middle of one is detected within a window of its start.
PART, PARTS = 100, 5
WINDOW = PART * PARTS


@dataclass(frozen=True, eq=False)
class Live:
    """The answers of a window; counts of several servers add up.

    Attributes:
        labels: [labels + 1], answers with each label, and last the answers that abstain.
        scores: [bins of the reference], answers by top score.
        confidence: sum of the top scores.
    """

    answers: int
    labels: NDArray[np.int64]
    scores: NDArray[np.int64]
    confidence: float


class Window:
    """The last answers of one version; one thread counts.

    With four labels it takes 4 KB, with 32 labels 22 KB, its reference included (`test_watch.py` bounds it): counts of
    a part are two bytes each, and the tables of the reference are the larger half.
    """

    __slots__ = (
        "_bins",
        "_filled",
        "_index",
        "_part",
        "_ring",
        "_sums",
        "_width",
        "answers",
        "last",
        "reference",
    )

    def __init__(self, manifest: Manifest, reference: Reference) -> None:
        self.reference = reference
        self.answers = 0
        self.last: Live | None = None
        self._bins = len(manifest.labels) + 1
        self._index = {ABSTAINED: self._bins - 1} | {label: place for place, label in enumerate(manifest.labels)}
        self._width = self._bins + len(reference.scores)
        self._ring = array("H", bytes(2 * PARTS * self._width))
        self._sums = [0.0] * PARTS
        self._part = self._filled = 0

    @property
    def labels(self) -> int:
        """The number of the task's labels."""
        return self._bins - 1

    def add(self, labels: Sequence[str], score: float | None) -> Live | None:
        """Counts one answer; returns the window's counts when a part is full, also in `last`."""
        ring, start = self._ring, self._part * self._width
        for label in labels:
            place = self._index.get(label)
            if place is not None:
                ring[start + place] += 1
        if score is not None and self.reference.scores:
            ring[start + self._bins + bisect_left(self.reference.edges, score)] += 1
            self._sums[self._part] += score
        self.answers += 1
        self._filled += 1
        if self._filled < PART:
            return None
        self.last = self._counted()
        self._part, self._filled = (self._part + 1) % PARTS, 0
        start = self._part * self._width
        ring[start : start + self._width] = array("H", bytes(2 * self._width))
        self._sums[self._part] = 0.0
        return self.last

    def _counted(self) -> Live:
        counts = np.frombuffer(self._ring, np.uint16).reshape(PARTS, -1).sum(axis=0, dtype=np.int64)
        labels, scores = np.split(counts, [self._bins])
        return Live(min(self.answers, WINDOW), labels, scores, sum(self._sums))
