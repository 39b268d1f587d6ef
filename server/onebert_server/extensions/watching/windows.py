"""Counts the answers of one version in a sliding window, as its reference counts them; no text is kept.

With four labels a watched version takes 7 KB, with 32 labels 25 KB, its reference included, and 8 KB more while it
learns one (`test_watch.py` bounds it): counts of a part are two bytes each.
"""

from array import array
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebert_server.observed import ABSTAINED, Seen
from onebert_store.file.reference import WINDOW, Reference

# A window slides by a part, so that a change in the middle of one is detected within a window of its start.
PARTS = 5
PART = WINDOW // PARTS


@dataclass(frozen=True, eq=False)
class Live:
    """The answers of a window; counts of several servers by one reference add up.

    Attributes:
        labels: [labels + 1], answers with each label, and last the answers that abstain.
        scores: [bins of the reference], answers by top score.
        confidence: sum of the top scores.
    """

    answers: int
    labels: NDArray[np.int64]
    scores: NDArray[np.int64]
    confidence: float


class Texts:
    """Hashes of the last 500 texts that were counted, so that a window has each text once."""

    __slots__ = ("_hashes", "_place")

    def __init__(self) -> None:
        self._hashes, self._place = bytearray(4 * WINDOW), 0

    def add(self, answers: Sequence[Seen]) -> list[Seen]:
        """Adds the hashes of 32 bits of answers with texts; returns the answers whose text was not among them."""
        new = []
        for answer in answers:
            hashed = (answer.text or 0).to_bytes(4, "little")
            # A set would be faster, by some microseconds, and 20 times as large. A search in bytes takes two texts for
            # one in one case of two million.
            if hashed not in self._hashes:
                self._hashes[self._place : self._place + 4] = hashed
                self._place = (self._place + 4) % len(self._hashes)
                new.append(answer)
        return new


def places_of(labels: Sequence[str]) -> Mapping[str, int]:
    """The place of each label's count; abstentions come last."""
    return {ABSTAINED: len(labels)} | {label: place for place, label in enumerate(labels)}


class Window:
    """The last answers of one version; one thread counts."""

    __slots__ = ("_bins", "_filled", "_part", "_places", "_ring", "_sums", "_width", "answers", "last", "reference")

    def __init__(self, labels: Sequence[str], reference: Reference) -> None:
        self.reference = reference
        self.answers = 0
        self.last: Live | None = None
        self._bins = len(labels) + 1
        self._places = places_of(labels)
        self._width = self._bins + len(reference.scores)
        self._ring = array("H", bytes(2 * PARTS * self._width))
        self._sums = [0.0] * PARTS
        self._part = self._filled = 0

    def add(self, answers: Sequence[Seen]) -> list[Live]:
        """Counts answers; returns the window's counts each time that a part is full, the newest also in `last`."""
        full: list[Live] = []
        for answer in answers:
            ring, start, score = self._ring, self._part * self._width, answer.score
            for label in answer.labels:
                place = self._places.get(label)
                if place is not None:
                    ring[start + place] += 1
            if score is not None and self.reference.scores:
                ring[start + self._bins + bisect_left(self.reference.edges, score)] += 1
                self._sums[self._part] += score
            self.answers += 1
            self._filled += 1
            if self._filled == PART:
                full.append(self._next_part())
        return full

    def _next_part(self) -> Live:
        """Empties the oldest part; returns the counts of all parts before."""
        self.last = live = self._counted()
        self._part, self._filled = (self._part + 1) % PARTS, 0
        start = self._part * self._width
        self._ring[start : start + self._width] = array("H", bytes(2 * self._width))
        self._sums[self._part] = 0.0
        return live

    def _counted(self) -> Live:
        counts = np.frombuffer(self._ring, np.uint16).reshape(PARTS, -1).sum(axis=0, dtype=np.int64)
        labels, scores = np.split(counts, [self._bins])
        return Live(min(self.answers, WINDOW), labels, scores, sum(self._sums))
