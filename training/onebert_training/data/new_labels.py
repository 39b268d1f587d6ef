"""Labels that only added rows have: one with enough rows joins the task, and the rows of the others are left out."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.answering.stretches import is_bio
from onebert_store.file.manifest import TaskType
from onebert_training.data.checks import listed
from onebert_training.data.examples import Split

ROWS = 5  # of a new label, unless --new-label-rows says otherwise


def widened(labels: Sequence[str], more: Iterable[str], task_type: TaskType) -> tuple[str, ...]:
    """Appends the labels of `more` that a task lacks to its own; an entity brings both its tags."""
    if task_type == "token" and is_bio(labels):
        more = [f"{mark}-{tag[2:]}" for tag in more if tag[:2] in ("B-", "I-") for mark in "BI"]
    return tuple(dict.fromkeys((*labels, *more)))


def with_enough_rows(
    added: Split, labels: Sequence[str], known: int, task_type: TaskType, least: int
) -> tuple[Split, tuple[str, ...], list[str]]:
    """Returns the rows whose labels all have at least `least` rows or are old ones, the labels, and notes.

    Args:
        labels: of the rows, the new ones from the index `known` on.
    """
    having = _having(added, labels, known, task_type)
    stay = np.ones(len(added), bool)
    while True:
        # Each row left out may take another of its new labels below the bound.
        rare = {kind for kind, rows in having.items() if np.count_nonzero(rows & stay) < least}
        remaining = ~np.any([having[kind] for kind in rare], axis=0) if rare else stay
        if np.array_equal(remaining, stay):
            break
        stay = remaining
    new, few = ({kind: rows for kind, rows in having.items() if rows.any() and (kind in rare) == are} for are in (0, 1))
    notes = [f"new labels: {_counted(new, stay)}"] if new else []
    if few:
        every = np.ones(len(added), bool)
        why = f"of new labels with fewer than {least} (--new-label-rows)"
        notes.append(f"{np.count_nonzero(~stay):,} rows are left out, {why}: {_counted(few, every)}")
    places = [at for at, name in enumerate(labels) if at < known or _kind(name, labels, task_type) not in rare]
    rows = added.take(np.flatnonzero(stay))
    return _at(rows, places, task_type), tuple(labels[at] for at in places), notes


def padded(split: Split, labels: int, task_type: TaskType) -> Split:
    """Returns rows with a column for each of so many labels, as multi_label targets have."""
    if task_type != "multi_label" or not isinstance(split.gold, np.ndarray):
        return split
    return replace(split, gold=np.pad(split.gold, ((0, 0), (0, labels - split.gold.shape[1]))))


def _counted(having: Mapping[str, NDArray[np.bool_]], rows: NDArray[np.bool_]) -> str:
    return listed(having, [f"rows: {np.count_nonzero(rows & each):,}" for each in having.values()])


def _having(added: Split, labels: Sequence[str], known: int, task_type: TaskType) -> Mapping[str, NDArray[np.bool_]]:
    """By new label, or kind of entity: [rows], whether a row has it."""
    having = dict[str, NDArray[np.bool_]]()
    for at in range(known, len(labels)):
        if task_type == "multi_label":
            rows = np.array([row[at] > 0 for row in added.gold], bool)
        else:
            rows = np.array([at in row if task_type == "token" else at == row for row in added.gold], bool)
        kind = _kind(labels[at], labels, task_type)
        having[kind] = having.get(kind, False) | rows
    return having


def _kind(label: str, labels: Sequence[str], task_type: TaskType) -> str:
    return label[2:] if task_type == "token" and is_bio(labels) else label


def _at(split: Split, places: Sequence[int], task_type: TaskType) -> Split:
    """Returns rows that have only the labels at these places, by their new places."""
    if task_type == "multi_label" and isinstance(split.gold, np.ndarray):
        return replace(split, gold=split.gold[:, places])
    now = {before: at for at, before in enumerate(places)}
    if task_type == "token":
        return replace(split, gold=tuple(tuple(now[tag] for tag in tags) for tags in split.gold))
    return replace(split, gold=np.array([now[at] for at in split.gold], np.int64))
