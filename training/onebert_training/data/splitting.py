"""Chooses training and validation rows at random, but the same ones for every run on the data."""

from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.text.tokens import Text
from onebert_store.errors import InvalidData
from onebert_store.file.manifest import TaskType
from onebert_store.tables.tables import SPLITS
from onebert_training.data.checks import check_variety
from onebert_training.data.examples import Split

HELD_OUT = 10  # one training row in ten, if the data has no validation split
TOO_FEW_TO_SPARE = 300  # a tenth of fewer rows is too small to choose by, and training misses it
SPLIT_SEED = 20240601  # not a run's seed, so that runs with different seeds see the same rows


def even_order(split: Split, task_type: TaskType, seed: int) -> NDArray[np.int64]:
    """[rows], a random order; each stretch of it has the labels of a single_label task in proportion."""
    order = np.random.default_rng(seed).permutation(len(split))
    if task_type != "single_label":
        return order
    gold = split.gold[order]
    progress = np.zeros(len(split))
    for label in np.unique(gold):
        members = np.flatnonzero(gold == label)
        progress[members] = (np.arange(len(members)) + 0.5) / len(members)
    return order[np.argsort(progress, kind="stable")]


def _keys(texts: Sequence[Text], task_type: TaskType) -> list[Hashable]:
    """One key per row; rows with equal keys stay on one side of a division."""
    groups = _groups(texts, task_type)
    return [_links(text, task_type, whole=True)[0] for text in texts] if groups is None else list(map(int, groups))


def _links(text: Text, task_type: TaskType, whole: bool) -> tuple[Hashable, ...]:
    """The key that a row shares with the rows that it is linked with.

    A text; in a span task the context, which many questions share; of a pair each text, or `whole`, the pair in either
    order.
    """
    if isinstance(text, str):
        return (text,)
    if task_type == "span":
        return (text[1],)
    return (tuple(sorted(text)),) if whole else text


def _groups(texts: Sequence[Text], task_type: TaskType) -> NDArray[np.int64] | None:
    """[texts], group numbers of pairs: those with a common text share a group, also indirectly through other pairs.

    None for other texts, and if one group has more than a tenth of the rows, because many texts are compared with the
    same few: then equal texts or pairs alone stay together.
    """
    pairs = [text for text in texts if not isinstance(text, str)]
    if not pairs or task_type == "span":
        return None
    # Imported here because few data sets need them.
    from scipy.sparse import coo_array  # noqa: PLC0415
    from scipy.sparse.csgraph import connected_components  # noqa: PLC0415

    number: dict[str, int] = {}
    first, second = np.array([[number.setdefault(text, len(number)) for text in pair] for pair in pairs]).T
    links = coo_array((np.ones(len(pairs), dtype=np.int8), (first, second)), shape=(len(number), len(number)))
    groups = np.asarray(connected_components(links, directed=False)[1][first].astype(np.int64))
    return groups if np.bincount(groups).max() <= max(2, len(texts) // HELD_OUT) else None


def unlinked(
    added: Sequence[Text], data: Sequence[Text], measured: Sequence[Text], task_type: TaskType
) -> NDArray[np.bool_]:
    """[added], whether added rows are linked with none of the rows of the data that are measured.

    `data` are all rows of the data: pairs are linked as these are.
    """
    whole = _groups(data, task_type) is None
    links = {link for text in measured for link in _links(text, task_type, whole)}
    return np.array([links.isdisjoint(_links(text, task_type, whole)) for text in added], dtype=bool)


def subset(train: Split, task_type: TaskType, rows: int | None, seed: int) -> Split:
    """Draws `rows` rows evenly over the labels; returns all rows if `rows` is None or not below their number."""
    if rows is None or rows >= len(train):
        return train
    return train.take(np.sort(even_order(train, task_type, seed)[:rows]))


def fold_of(split: Split, task_type: TaskType, folds: int, seed: int) -> NDArray[np.int64]:
    """[rows], the fold of each row, even over the labels; equal `_keys` share a fold, and few keys make fewer folds."""
    keys, order = _keys(split.texts, task_type), even_order(split, task_type, seed).tolist()
    places = {key: place for place, key in enumerate(dict.fromkeys(keys[i] for i in order))}
    folds = min(folds, len(places))
    return np.array([places[key] * folds // len(places) for key in keys])


class Fold(NamedTuple):
    """Rows of a training split, [rows] each: those that are trained on, and own rows that are measured."""

    rows: NDArray[np.int64]
    held_out: NDArray[np.int64]


def make_folds(train: Split, task_type: TaskType, folds: int, seed: int) -> list[Fold]:
    """Folds of a task's own rows; an added row is trained on where the fold measures no row that it is linked with."""
    own_rows = train.own_rows
    fold = fold_of(train.take(own_rows), task_type, folds, seed)
    added = np.setdiff1d(np.arange(len(train)), own_rows)
    texts, own_texts = [[train.texts[row] for row in rows.tolist()] for rows in (added, own_rows)]
    parts = []
    for number in np.unique(fold):
        held_out, rest = own_rows[fold == number], own_rows[fold != number]
        measured = [train.texts[row] for row in held_out.tolist()]
        free = unlinked(texts, own_texts, measured, task_type) if texts else np.ones(0, bool)
        parts.append(Fold(np.sort(np.concatenate([rest, added[free]])), held_out))
    return parts


def check_divisible(train: Split, task_type: TaskType) -> None:
    """Refuses rows that cannot be divided: all have the same text, or in a span task the same context."""
    if len(set(_keys(train.texts, task_type))) == 1:
        raise InvalidData("all training rows have the same text, so none can be held out to measure by")


def hold_out(train: Split, task_type: TaskType, share: float, max_rows: int | None, seed: int) -> tuple[Split, Split]:
    """Divides rows into training rows and at most `max_rows` validation rows; rows with equal `_keys` stay together."""
    if len(train) < HELD_OUT:
        raise InvalidData(f"without a validation split at least {HELD_OUT} training rows are needed")
    order = even_order(train, task_type, seed)
    by_row = _keys(train.texts, task_type)
    keys = [by_row[i] for i in order.tolist()]
    sizes = Counter(keys)
    check_divisible(train, task_type)
    room = max(1, min(int(len(train) * share + 1e-9), max_rows or len(train)))
    held_out = set[Hashable]()
    for key in reversed(keys):
        if sizes[key] <= room and key not in held_out:
            held_out.add(key)
            room -= sizes[key]
    held_out = held_out or {min(sizes, key=sizes.__getitem__)}
    chosen = np.array([key in held_out for key in keys])
    return train.take(np.sort(order[~chosen])), train.take(np.sort(order[chosen]))


def with_held_out(
    splits: Mapping[str, Split], task_type: TaskType, share: float | None, max_rows: int | None
) -> tuple[dict[str, Split], list[str]]:
    """Divides the training rows by `hold_out`; returns the splits, and notes."""
    rows = len(splits["train"])
    train, validation = hold_out(splits["train"], task_type, share or 1 / HELD_OUT, max_rows, SPLIT_SEED)
    check_variety(train, task_type, len(validation))
    parts = {**splits, "train": train, "validation": validation}
    why = "no validation split" if share is None else "by the requested share"
    note = f"{why}: {len(validation)} of {rows} training rows are held out for it"
    # The digest depends on the order of the splits: keep the order of SPLITS.
    return {name: parts[name] for name in SPLITS if name in parts}, [note]


def with_given_validation(
    splits: Mapping[str, Split], task_type: TaskType, max_rows: int | None
) -> tuple[dict[str, Split], list[str]]:
    """Keeps the validation rows, `max_rows` at most, or goes without any; returns the splits, and notes."""
    if "validation" not in splits:
        check_divisible(splits["train"], task_type)
        rows = len(splits["train"])
        note = f"no validation split: all {rows:,} training rows are fitted on, and folds of them measured"
        if rows < TOO_FEW_TO_SPARE:
            few = "are too few to spare any: all are trained on, and folds of them measured"
            note = f"no validation split, and {rows} training rows {few}"
        return dict(splits), [note]
    validation = splits["validation"]
    used = subset(validation, task_type, max_rows, SPLIT_SEED)
    notes = [f"{len(used):,} of {len(validation):,} validation rows are used"] if len(used) < len(validation) else []
    return {**splits, "validation": used}, notes
