"""Adds rows to the data: they correct rows with the same text, and a label with enough of them joins the task."""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.answering.stretches import is_bio
from onebert_encoder.text.tokens import Text
from onebert_store.errors import InvalidData
from onebert_store.file.manifest import TaskType
from onebert_training.data.checks import check_names, listed, name_doubts
from onebert_training.data.examples import Split
from onebert_training.data.splitting import unlinked

ROWS = 5  # of a new label, unless --new-label-rows says otherwise


def widened(labels: Sequence[str], more: Iterable[str], task_type: TaskType) -> tuple[str, ...]:
    """Appends the labels of `more` that a task lacks to its own; an entity brings both its tags."""
    if task_type == "token" and is_bio(labels):
        more = [f"{mark}-{tag[2:]}" for tag in more if tag[:2] in ("B-", "I-") for mark in "BI"]
    return tuple(dict.fromkeys((*labels, *more)))


class Joined(NamedTuple):
    """Splits with added rows: `rows` of them are used, `relabeled` measured rows have their labels."""

    splits: dict[str, Split]
    labels: tuple[str, ...]
    rows: int
    relabeled: int
    notes: list[str]


def join(
    splits: Mapping[str, Split], known: int, added: Split, labels: Sequence[str], task_type: TaskType, least: int
) -> Joined:
    """Corrects the rows of every split that have a text of the added rows, and trains on the other added rows.

    Of added rows with one text the last counts. Those that are linked with a measured row are left out, as are those
    with new labels that fewer than `least` rows teach.

    Args:
        labels: of the added rows; those from the index `known` on are new.
    """
    last = added.take(np.array([*{text: row for row, text in enumerate(added.texts)}.values()], np.int64))
    train = {*splits["train"].texts}
    measured = {text for name, split in splits.items() if name != "train" for text in split.texts}
    # A test split has no say in how pairs are held out.
    data = [text for name, split in splits.items() if name != "test" for text in split.texts]
    free = unlinked(last.texts, data, [*measured], task_type)
    teaches = np.array([text in train for text in last.texts], bool) | free
    usable = np.flatnonzero(teaches | np.array([text in measured for text in last.texts], bool))
    rows = last.take(usable)
    rows, names, notes = with_enough_rows(rows, labels, known, task_type, least, teaches[usable])
    # A text whose new label is too rare to learn would teach the label that it replaces.
    rare = {*last.texts} - {*rows.texts} if task_type == "single_label" else set[Text]()
    corrected = {name: _corrected(padded(split, len(names), task_type), rows, rare) for name, split in splits.items()}
    texts = {*rows.texts}
    replaced = {name: sum(text in texts for text in split.texts) for name, split in corrected.items()}
    new = rows.take(np.flatnonzero([text not in train | measured for text in rows.texts]))
    note = f"{len(new):,} added, {sum(replaced.values()):,} of the data corrected by them"
    if skipped := len(added) - len(last):
        note += f", {skipped:,} skipped: a later row has their text"
    if linked := len(last) - len(usable):
        note += f", {linked:,} left out: validation or test has one of their texts"
    if left_out := sum(map(len, splits.values())) - sum(map(len, corrected.values())):
        notes.append(f"{left_out:,} rows of the data are left out, too: these are their new labels")
    relabeled = sum(count for name, count in replaced.items() if name != "train" or "validation" not in splits)
    whole = {**corrected, "train": corrected["train"].joined(new)}
    return Joined(whole, names, len(rows), relabeled, [note, *notes, *_unmeasured(whole, names, known, task_type)])


def _corrected(split: Split, rows: Split, without: Collection[Text]) -> Split:
    """A split with the answers that `rows` give to its texts, and no row with one of the texts `without`."""
    place = {text: len(split) + row for row, text in enumerate(rows.texts)}
    chosen = [place.get(text, row) for row, text in enumerate(split.texts) if text not in without]
    if not chosen:
        raise InvalidData("all rows of a split get new labels that too few rows have (--new-label-rows)")
    return replace(split.joined(rows).take(np.array(chosen, np.int64)), origins=())


def _unmeasured(splits: Mapping[str, Split], labels: Sequence[str], known: int, task_type: TaskType) -> list[str]:
    measured = [split for name, split in splits.items() if name != "train"]
    measured = measured or [splits["train"].own]
    having = [_having(split, labels, known, task_type) for split in measured]
    absent = {kind for kind in having[0] if not any(rows[kind].any() for rows in having)}
    return [f"no measured row has {listed(sorted(absent))}: no score says how they are answered"] if absent else []


def with_enough_rows(
    added: Split, labels: Sequence[str], known: int, task_type: TaskType, least: int, teaches: NDArray[np.bool_]
) -> tuple[Split, tuple[str, ...], list[str]]:
    """Returns the rows whose labels all have at least `least` rows or are old ones, the labels, and notes.

    Args:
        labels: of the rows, the new ones from the index `known` on.
        teaches: [rows], whether a row is trained on, and so counts.
    """
    if len(labels) == known:
        return added, tuple(labels), []
    having = _having(added, labels, known, task_type)
    stay = np.ones(len(added), bool)
    while True:
        # Each row left out may take another of its new labels below the bound.
        rare = {kind for kind, rows in having.items() if np.count_nonzero(rows & stay & teaches) < least}
        remaining = ~np.any([having[kind] for kind in rare], axis=0) if rare else stay
        if np.array_equal(remaining, stay):
            break
        stay = remaining
    new, few = ({kind: rows for kind, rows in having.items() if rows.any() and (kind in rare) == are} for are in (0, 1))
    notes = [f"new labels: {_counted(new, stay & teaches)}"] if new else []
    if few:
        why = f"of new labels with fewer than {least} (--new-label-rows)"
        notes.append(f"{np.count_nonzero(~stay):,} rows are left out, {why}: {_counted(few, teaches)}")
    places = [at for at, name in enumerate(labels) if at < known or _kind(name, labels, task_type) not in rare]
    names = tuple(labels[at] for at in places)
    check_names(names, task_type)
    notes += name_doubts(names)
    return _at(added.take(np.flatnonzero(stay)), places, task_type), names, notes


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
    if task_type == "multi_label" and isinstance(split.gold, np.ndarray):
        return replace(split, gold=split.gold[:, places])
    now = {before: at for at, before in enumerate(places)}
    if task_type == "token":
        return replace(split, gold=tuple(tuple(now[tag] for tag in tags) for tags in split.gold))
    return replace(split, gold=np.array([now[at] for at in split.gold], np.int64))
