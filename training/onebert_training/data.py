"""Tables of cells to examples with gold labels; whatever is wrong with the data is said here, before any training."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.answer import is_bio
from onebert_encoder.tokens import Text
from onebert_store.errors import InvalidData
from onebert_store.manifest import TaskType
from onebert_training.cells import Columns, cells_are_indices, find_label, infer_task_type
from onebert_training.examples import Cells, Split
from onebert_training.tables import SPLITS, Source, Table, read_source
from onebert_training.words import spans_of

HELD_OUT = 10  # every tenth training row, where the data has no validation split
SPLIT_SEED = 20240601  # of choices that belong to the data, so that runs with different seeds see the same rows


@dataclass(frozen=True)
class Dataset:
    """What a run trains and is measured on.

    Attributes:
        labels: names by index; the one name `score` for a regression.
        metric: the metric that the source names, if any.
        splits: `train` and `validation`, and `test` where there is one.
        notes: what a user should know about how the splits came to be.
    """

    name: str
    task_type: TaskType
    labels: tuple[str, ...]
    metric: str | None
    splits: Mapping[str, Split]
    notes: tuple[str, ...] = ()

    @cached_property
    def digest(self) -> str:
        """`sha256:…` over task type, labels and every example of every split."""
        hasher = hashlib.sha256(json.dumps([self.task_type, self.labels]).encode())
        for name, split in self.splits.items():
            for i, (text, gold) in enumerate(zip(split.texts, split.plain_gold(), strict=True)):
                words = split.words[i] if split.words else ()
                # Words are what single spaces separate, unless a word has one inside.
                unusual = [words] if words and isinstance(text, str) and words != spans_of(text.split(" ")) else []
                hasher.update(json.dumps([name, text, gold, *unusual]).encode() + b"\n")
        return f"sha256:{hasher.hexdigest()}"


def load_dataset(
    source: str,
    columns: Columns,
    task_type: TaskType | None = None,
    train_rows: int | None = None,
    validation_share: float | None = None,
    split_seed: int = SPLIT_SEED,
) -> Dataset:
    """Loads data for training: a validation split is held out where there is none.

    Args:
        source: a file, a folder or `hf:dataset[/config]`.
        columns: where the texts and labels are.
        task_type: None infers it from the source or the training labels.
        train_rows: use only so many training rows, drawn evenly over the labels; 100 are among the 1,000.
        validation_share: hold out this share of the training rows although there is a validation split, which then is
            the test split in place of any other; for benchmarks that hide the labels of their test split (What
            Parameters to Freeze, section III-B).
        split_seed: draws the training rows and the rows held out; runs with different seeds of their own see the same
            rows unless this one differs, too.

    Raises:
        InvalidData: one sentence on what is wrong, with the row where there is one.
    """
    if validation_share is not None and not 0 < validation_share < 1:
        raise InvalidData("the share of the training rows to validate on is above 0 and below 1")
    read = read_source(source)
    if "train" not in read.tables:
        raise InvalidData("the data has no training split")
    tables, notes = _without_unlabeled_test(read, columns)
    if validation_share is not None and "validation" in tables:
        tables.pop("test", None)
        notes = ["the validation split of the data is the test split"]
    guessed = task_type is None and read.task_type is None
    task_type = task_type or infer_task_type(read, columns)
    by_index = cells_are_indices(tables.values(), columns, read, task_type)
    cells = {split: Cells(split, table, columns, read, by_index) for split, table in tables.items()}
    labels = cells["train"].label_names(task_type)
    splits = {name: part.split(task_type, labels) for name, part in cells.items()}
    _check_seen(splits, task_type, labels)
    if validation_share is not None and "validation" in splits:
        splits["test"] = splits.pop("validation")
    rows_there = len(splits["train"])
    splits["train"] = _subset(splits["train"], task_type, train_rows, split_seed)
    _check_variety(splits["train"], task_type)
    if "validation" not in splits:
        rows = len(splits["train"])
        splits["train"], held_out = _hold_out(splits["train"], task_type, validation_share or 1 / HELD_OUT, split_seed)
        # In the order of every data set: the digest goes over the splits one by one.
        splits = {name: split for name in SPLITS if (split := {**splits, "validation": held_out}.get(name)) is not None}
        why = "no validation split" if validation_share is None else "by the share asked for"
        notes.append(f"{why}: {len(held_out)} of {rows} training rows are held out for it")
        _check_variety(splits["train"], task_type)
    notes += _shortages(splits, task_type, labels)
    if train_rows is not None and rows_there < train_rows:
        notes.append(f"only {rows_there:,} training rows are there, not {train_rows:,}")
    if guessed and task_type == "single_label" and len(labels) > 2 and all(map(_is_number, labels)):
        notes.append(
            f"the labels are numbers and taken as {len(labels)} classes; --task-type regression takes them as numbers"
        )
    return Dataset(read.name, task_type, labels, read.metric, splits, tuple(notes))


def load_split(
    source: str, columns: Columns, task_type: TaskType, labels: Sequence[str], split: str | None = None
) -> tuple[str, Split, str | None]:
    """Loads one split to measure a trained delta on.

    Args:
        source: as for `load_dataset`; a single file is taken whole.
        columns: where the texts and labels are.
        task_type: of the delta.
        labels: of the delta; the data's labels are matched by name.
        split: None takes test, else validation, else training.

    Returns:
        The split's name, its examples, and the metric that the source names, if any.

    Raises:
        InvalidData: one sentence on what is wrong, with the row where there is one.
    """
    read = read_source(source)
    tables, _ = _without_unlabeled_test(read, columns)
    name = "train" if read.single_file else split or next(s for s in reversed(SPLITS) if s in tables)
    if name not in tables:
        raise InvalidData(f"the data has no labeled {name} split; it has {', '.join(tables)}")
    cells = Cells(name, tables[name], columns, read, cells_are_indices(tables.values(), columns, read, task_type))
    return ("all" if read.single_file else name), cells.split(task_type, tuple(labels)), read.metric


def _without_unlabeled_test(read: Source, columns: Columns) -> tuple[dict[str, Table], list[str]]:
    """Benchmarks hide the labels of their test split behind -1 or nothing; such a split measures nothing."""
    tables = dict(read.tables)
    if "test" in tables and len(tables) > 1:
        label = find_label(tables["test"], columns)
        if label is None or all(cell in (None, "", -1, "-1") for cell in tables["test"][label]):
            del tables["test"]
            return tables, ["the test split has no labels and is left out"]
    return tables, []


def _even_order(split: Split, task_type: TaskType, seed: int) -> NDArray[np.int64]:
    """A fixed random order; every stretch of it has the labels of a single_label task in their proportions."""
    order = np.random.default_rng(seed).permutation(len(split))
    if task_type != "single_label":
        return order
    gold = split.gold[order]
    progress = np.zeros(len(split))
    for label in np.unique(gold):
        members = np.flatnonzero(gold == label)
        progress[members] = (np.arange(len(members)) + 0.5) / len(members)
    return order[np.argsort(progress, kind="stable")]


def _subset(train: Split, task_type: TaskType, rows: int | None, seed: int) -> Split:
    if rows is None or rows >= len(train):
        return train
    return train.take(np.sort(_even_order(train, task_type, seed)[:rows]))


def _hold_out(train: Split, task_type: TaskType, share: float, seed: int) -> tuple[Split, Split]:
    """Training rows and validation rows; equal texts are never on both sides."""
    if len(train) < HELD_OUT:
        raise InvalidData(f"without a validation split at least {HELD_OUT} training rows are needed")
    order = _even_order(train, task_type, seed)
    # Many questions share a context, which is the text to keep to one side.
    keys = [train.texts[i][1] if task_type == "span" else train.texts[i] for i in order.tolist()]
    sizes = Counter(keys)
    if len(sizes) == 1:
        raise InvalidData("all training rows have the same text, so no validation split can be held out")
    room = max(1, int(len(train) * share + 1e-9))
    held_out = set[Text]()
    for key in reversed(keys):
        if sizes[key] <= room and key not in held_out:
            held_out.add(key)
            room -= sizes[key]
    held_out = held_out or {min(sizes, key=sizes.__getitem__)}
    chosen = np.array([key in held_out for key in keys])
    return train.take(np.sort(order[~chosen])), train.take(np.sort(order[chosen]))


def _seen(split: Split, task_type: TaskType) -> set[int]:
    """Indices of the labels that the split has; empty where a task has none to choose from."""
    if task_type == "token":
        return set[int]().union(*split.gold)
    if task_type == "multi_label":
        return set(np.flatnonzero(np.any(split.gold, axis=0)).tolist())
    return set(np.unique(split.gold).tolist()) if task_type == "single_label" else set()


def _check_seen(splits: Mapping[str, Split], task_type: TaskType, labels: Sequence[str]) -> None:
    """Refuses data that validates what it cannot teach."""
    if "validation" not in splits:
        return
    for label in sorted(_seen(splits["validation"], task_type) - _seen(splits["train"], task_type)):
        raise InvalidData(f"the validation split has the label {labels[label][:40]!r}, which no training row has")


def _check_variety(train: Split, task_type: TaskType) -> None:
    """Refuses training rows from which nothing can be learned."""
    if task_type == "multi_label" and not _seen(train, task_type):
        raise InvalidData("no training row has a label")
    one_label = task_type in ("single_label", "token") and len(_seen(train, task_type)) < 2
    if one_label or (task_type == "regression" and len(np.unique(train.gold)) < 2):
        raise InvalidData(f"all training {'words' if task_type == 'token' else 'rows'} have the same label")


def _is_number(label: str) -> bool:
    try:
        return math.isfinite(float(label.replace(",", ".")))
    except ValueError:
        return False


def _shortages(splits: Mapping[str, Split], task_type: TaskType, labels: Sequence[str]) -> list[str]:
    """What the data lacks without being bad."""
    notes = []
    chosen_from = task_type in ("single_label", "multi_label", "token")
    if chosen_from and (absent := len(labels) - len(_seen(splits["train"], task_type))):
        notes.append(f"{absent} of {len(labels)} labels have no training row")
    if task_type == "token" and "O" in labels and not is_bio(labels):
        notes.append("the tags are not all O, B-x or I-x: words are measured, not entities")
    if "test" not in splits:
        notes.append("no test split: the validation metric is the final one")
    return notes
