"""The reference of a manifest (format 3): the answers to rows that the task was not trained on, as counts."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, model_validator

from onebert_store.file.fields import Finite, Line, Strict

MAX_BINS = 10
# Fewer rows would make a bin's share too uncertain to be compared with.
MIN_BIN_ROWS = 10
# Labels of one answer that a server counts.
MAX_ANSWERED = 64
# The split of earlier files without a validation split: rows that other, less sure models answered.
FOLDS = "folds"
# A server compares windows of so many answers, each time that it has `PART` more. One false alarm in 300,000 answers
# gives each of these comparisons this level.
WINDOW, PART, LEVEL = 500, 100, 1 / 3000

Count = Annotated[int, Field(ge=0, le=2**31 - 1)]
Counts = list[Count]
Share = Annotated[Finite, Field(ge=0, le=1)]


class Reference(Strict):
    """Answers of one version, as a server gives them, to labeled rows that it was not trained on.

    Attributes:
        split: the split's name; see also `FOLDS`.
        labels: how many answers have each label; an answer of some tasks has several, or none.
        abstained: how many answers abstained; they have no label.
        edges: upper bounds of the bins of top scores but the last, in between scores that occurred.
        scores: answers by bin, one more than edges; empty if scores are no probabilities.
        confidence: the mean top score.
        right: tables of earlier files, which nothing reads.
    """

    split: Line
    rows: Annotated[int, Field(ge=1, le=2**31 - 1)]
    labels: Annotated[Counts, Field(min_length=1)]
    abstained: Count = 0
    edges: Annotated[list[Share], Field(max_length=MAX_BINS - 1)]
    scores: Annotated[Counts, Field(max_length=MAX_BINS)]
    confidence: Share | None = None
    right: dict[Literal["answered", "scores"], list[Counts]] | None = None

    @model_validator(mode="after")
    def _counts_fit(self) -> "Reference":
        if any(low >= high for low, high in zip(self.edges, self.edges[1:], strict=False)):
            raise ValueError("edges are not increasing")
        if len(self.scores) != (len(self.edges) + 1 if self.confidence is not None else 0):
            raise ValueError("scores: one count more than edges, or none without a confidence")
        if self.scores and sum(self.scores) != self.rows:
            raise ValueError("scores do not add up to the rows")
        if max(*self.labels, self.abstained) > self.rows:
            raise ValueError("a label has more answers than there are rows")
        return self


def heard_move(reference: Reference) -> float | None:
    """The move of a label's share that rings in a full window, whichever label; None if one's rings neither way.

    Fisher's exact test, as servers apply it: two-sided, times the labels that occur, at half the level.
    """
    from scipy.stats import hypergeom  # noqa: PLC0415 - slow to import, and few callers ask

    live, heard, rows = np.arange(WINDOW + 1), [0.0], reference.rows
    # The rarest and the most common label, and the one nearest to half of the rows: no other is heard worse.
    for count in {min(reference.labels), max(reference.labels), min(reference.labels, key=lambda n: abs(2 * n - rows))}:
        tests = sum(map(bool, reference.labels)) + (count == 0)
        drawn = hypergeom(WINDOW + rows, live + count, WINDOW)
        ringing = 4 * tests * np.minimum(drawn.cdf(live), drawn.sf(live - 1)) < LEVEL
        moved = (live / WINDOW - count / rows)[ringing]
        if not moved.size:
            return None
        heard += [float(abs(way).min()) for way in (moved[moved < 0], moved[moved > 0]) if way.size]
    return max(heard)


def bin_edges(scores: NDArray[np.float64]) -> list[float]:
    """Returns edges that put about equally many scores [rows] in each of up to ten bins; none for few rows.

    An edge lies halfway between two different scores, so equal scores share a bin on every machine, whatever its
    rounding.
    """
    ordered = np.sort(scores)
    least, rows = max(len(ordered) // MAX_BINS, MIN_BIN_ROWS), len(ordered)
    edges, filled = list[float](), 0
    for place in (np.flatnonzero(np.diff(ordered) > 0) + 1).tolist():
        middle = float((ordered[place - 1] + ordered[place]) / 2)
        if place - filled >= least and rows - place >= least and ordered[place - 1] < middle:
            edges.append(middle)
            filled = place
    return edges


def score_counts(scores: NDArray[np.float64]) -> dict[str, Any]:
    """The fields of a reference by the top scores [rows] of its answers."""
    edges = bin_edges(scores)
    counts = np.bincount(count_bins(edges, scores), minlength=len(edges) + 1)
    return {"edges": edges, "scores": counts.tolist(), "confidence": min(float(scores.mean()), 1.0)}


def count_bins(edges: Sequence[float], scores: NDArray[np.float64]) -> NDArray[np.int64]:
    """Returns the bin of each score [rows], 0 to the number of edges; `bisect_left` gives the same for one score."""
    return np.searchsorted(np.asarray(edges), scores, side="left")
