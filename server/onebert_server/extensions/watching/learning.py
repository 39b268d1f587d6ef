"""Learns a reference from a version's first thousand answers, for a version whose file has none."""

import numpy as np

from onebert_server.extensions.watching.windows import Segment, joined, live_of
from onebert_store.file.reference import PART, Reference, bin_edges

# The `split` of a reference that is learned, and its rows once it is.
ANSWERS, LEARNED = "answers", 1000


def is_learned(reference: Reference | None) -> bool:
    """Whether a reference is complete: it is a file's, or counts a thousand answers."""
    return reference is not None and (reference.split != ANSWERS or reference.rows >= LEARNED)


def learned(reference: Reference | None, part: Segment) -> Reference:
    """The reference of a hundred answers more, until it is learned; the first hundred set the bins of top scores."""
    if reference is not None and is_learned(reference):
        return reference
    scored = len(part.scores) == PART and (reference is None or bool(reference.scores))
    edges = list[float]()
    if scored:
        edges = bin_edges(np.array(part.scores)) if reference is None else reference.edges
    bins = len(edges) + 1 if scored else 0
    answers = part.counted(edges, bins)
    if reference is not None:
        answers = joined([live_of(reference, bins), answers])
    *labels, abstained = answers.labels.tolist()
    return Reference(
        split=ANSWERS,
        rows=answers.answers,
        labels=labels,
        abstained=abstained,
        edges=edges,
        scores=answers.scores.tolist(),
        confidence=min(1.0, answers.confidence / answers.answers) if scored else None,
    )
