"""Chooses rows to train and to validate on, at random but the same for every run on the data."""

from collections import Counter

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.text.tokens import Text
from onebert_store.errors import InvalidData
from onebert_store.file.manifest import TaskType
from onebert_training.data.examples import Split

HELD_OUT = 10  # every tenth training row, where the data has no validation split
TOO_FEW_TO_SPARE = 300  # of fewer rows a tenth is too small to choose by, and missed by what is trained
SPLIT_SEED = 20240601  # not a run's seed, so that runs with different seeds see the same rows


def even_order(split: Split, task_type: TaskType, seed: int) -> NDArray[np.int64]:
    """[rows], a random order in which every stretch has the labels of a single_label task in proportion."""
    order = np.random.default_rng(seed).permutation(len(split))
    if task_type != "single_label":
        return order
    gold = split.gold[order]
    progress = np.zeros(len(split))
    for label in np.unique(gold):
        members = np.flatnonzero(gold == label)
        progress[members] = (np.arange(len(members)) + 0.5) / len(members)
    return order[np.argsort(progress, kind="stable")]


def _key(split: Split, row: int, task_type: TaskType) -> Text:
    """What rows on the two sides of a division must not share: in a span task many questions have one context."""
    text = split.texts[row]
    return text[1] if task_type == "span" else text


def subset(train: Split, task_type: TaskType, rows: int | None, seed: int) -> Split:
    """`rows` rows, drawn evenly over the labels; all rows if there are no more, or `rows` is None."""
    if rows is None or rows >= len(train):
        return train
    return train.take(np.sort(even_order(train, task_type, seed)[:rows]))


def fold_of(split: Split, task_type: TaskType, folds: int, seed: int) -> NDArray[np.int64]:
    """[rows], the fold of each row for cross-validation: even over the labels, and the same for equal texts.

    There are fewer folds where there are fewer different texts.
    """
    order = even_order(split, task_type, seed).tolist()
    places = {key: place for place, key in enumerate(dict.fromkeys(_key(split, i, task_type) for i in order))}
    folds = min(folds, len(places))
    return np.array([places[_key(split, i, task_type)] * folds // len(places) for i in range(len(split))])


def check_divisible(train: Split, task_type: TaskType) -> None:
    """Refuses rows of which none can be held out.

    Raises:
        InvalidData: all have the same text, or in a span task the same context.
    """
    if len({_key(train, row, task_type) for row in range(len(train))}) == 1:
        raise InvalidData("all training rows have the same text, so none can be held out to measure by")


def hold_out(train: Split, task_type: TaskType, share: float, most: int | None, seed: int) -> tuple[Split, Split]:
    """Divides rows into training rows and validation rows; equal texts are never in both.

    Args:
        train: all rows.
        task_type: the task's type.
        share: which share of the rows to validate on.
        most: how many rows to validate on at most; None is no limit.
        seed: draws the validation rows.

    Raises:
        InvalidData: too few rows, or all have the same text.
    """
    if len(train) < HELD_OUT:
        raise InvalidData(f"without a validation split at least {HELD_OUT} training rows are needed")
    order = even_order(train, task_type, seed)
    keys = [_key(train, i, task_type) for i in order.tolist()]
    sizes = Counter(keys)
    check_divisible(train, task_type)
    room = max(1, min(int(len(train) * share + 1e-9), most or len(train)))
    held_out = set[Text]()
    for key in reversed(keys):
        if sizes[key] <= room and key not in held_out:
            held_out.add(key)
            room -= sizes[key]
    held_out = held_out or {min(sizes, key=sizes.__getitem__)}
    chosen = np.array([key in held_out for key in keys])
    return train.take(np.sort(order[~chosen])), train.take(np.sort(order[chosen]))
