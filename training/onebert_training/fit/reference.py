"""Counts a version's answers to rows that it was not trained on: the reference of its manifest."""

from collections.abc import Sequence

import numpy as np

from onebert_encoder.answering.scores import own_activation, score
from onebert_encoder.text.tokens import Text, Tokens
from onebert_store.file.delta import Delta
from onebert_store.file.fingerprint import overlap_of
from onebert_store.file.manifest import WATCHED, Manifest, format_for
from onebert_store.file.reference import MAX_ANSWERED, Reference, heard_move, score_counts
from onebert_training.tasks.objective import Logits


def reference_of(
    manifest: Manifest,
    logits: Sequence[Logits],
    split: str,
    tokens: Sequence[Tokens],
    texts: Sequence[Text] = (),
) -> Reference | None:
    """Counts the manifest's answers to logits, [labels] a row. None without a reference.

    Rows whose `texts` the version was trained on are left out.
    """
    overlap = overlap_of(manifest, texts)
    unseen = [row for row, known in enumerate(overlap.known or [False] * len(logits)) if not known]
    if manifest.task_type not in WATCHED or not unseen or overlap.rows > sum(overlap.known):
        return None
    logits = [logits[row] for row in unseen]
    truncated = [tokens[row].truncated for row in unseen if tokens]
    scored = score(np.stack(logits).astype(np.float64), manifest, truncated=truncated)
    rows, labels = scored.scores.shape
    abstained = np.zeros(rows, bool) if scored.abstained is None else scored.abstained
    best, top = scored.scores.argmax(axis=1), scored.scores.max(axis=1)
    answered = np.eye(labels, dtype=bool)[best] if scored.selected is None else scored.selected
    answered = answered & ~abstained[:, None]
    if answered.sum(axis=1).max() > MAX_ANSWERED:
        return None
    by_score = score_counts(top) if own_activation(manifest) != "none" else {"edges": [], "scores": []}
    return Reference(
        split=split,
        rows=rows,
        labels=answered.sum(axis=0).tolist(),
        abstained=int(abstained.sum()),
        **by_score,
    )


def with_reference(delta: Delta, reference: Reference | None) -> Delta:
    """The delta with this reference, or without any."""
    format_ = format_for(delta.manifest.decision, delta.manifest.head, reference)
    return delta.with_manifest(format=format_, reference=reference and reference.model_dump())


def watching(manifest: Manifest) -> str | None:
    """How small a change a server hears in this version's answers, as text; None of a task that is not watched."""
    reference = manifest.reference
    if manifest.task_type not in WATCHED:
        return None
    if reference is None:
        return "the server learns its reference from the first 1,000 answers"
    moved = heard_move(reference)
    hears = (
        "too few to hear any change" if moved is None else f"a label that moves by {100 * moved:.0f} points is heard"
    )
    return f"{reference.rows:,} {reference.split} rows: {hears}"
