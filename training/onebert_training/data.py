"""Tables of cells to examples with gold labels; whatever is wrong with the data is said here, before any training."""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from onebert_store.errors import InvalidData
from onebert_store.manifest import TaskType
from onebert_training.cells import Cells, Columns, Split, cells_are_indices, find_label, infer_task_type, label_names
from onebert_training.tables import SPLITS, Source, Table, read_source

HELD_OUT = 10  # every tenth training row, where the data has no validation split
_SEED = 20240601  # of choices that belong to the data, so that runs with different seeds see the same rows


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

    @property
    def digest(self) -> str:
        """`sha256:…` over task type, labels and every example of every split."""
        hasher = hashlib.sha256(json.dumps([self.task_type, self.labels]).encode())
        for name, split in self.splits.items():
            for text, gold in zip(split.texts, split.gold.tolist(), strict=True):
                hasher.update(json.dumps([name, text, gold]).encode() + b"\n")
        return f"sha256:{hasher.hexdigest()}"


def load_dataset(
    source: str, columns: Columns, task_type: TaskType | None = None, train_rows: int | None = None
) -> Dataset:
    """Loads data for training: a validation split is held out where there is none.

    Args:
        source: a file, a folder or `hf:dataset[/config]`.
        columns: where the texts and labels are.
        task_type: None infers it from the source or the training labels.
        train_rows: use only so many training rows, drawn evenly over the labels; 100 are among the 1,000.

    Raises:
        InvalidData: one sentence on what is wrong, with the row where there is one.
    """
    read = read_source(source)
    if "train" not in read.tables:
        raise InvalidData("the data has no training split")
    tables, notes = _without_unlabeled_test(read, columns)
    by_index = cells_are_indices(tables.values(), columns, read)
    cells = {split: Cells(split, table, columns, read, by_index) for split, table in tables.items()}
    task_type = task_type or infer_task_type(read, cells["train"].labels)
    labels = label_names(task_type, cells["train"])
    splits = {name: part.split(task_type, labels) for name, part in cells.items()}
    splits["train"] = _subset(splits["train"], task_type, train_rows)
    if "validation" not in splits:
        train, validation = _hold_out(splits["train"], task_type)
        notes.append(
            f"no validation split: {len(validation)} of {len(splits['train'])} training rows are held out for it"
        )
        splits = {"train": train, "validation": validation, **{k: v for k, v in splits.items() if k == "test"}}
    _check_variety(splits["train"], task_type)
    if task_type == "single_label" and (absent := len(labels) - len(np.unique(splits["train"].gold))):
        notes.append(f"{absent} of {len(labels)} labels have no training row")
    if "test" not in splits:
        notes.append("no test split: the validation metric is the final one")
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
    cells = Cells(name, tables[name], columns, read, cells_are_indices(tables.values(), columns, read))
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


def _even_order(split: Split, task_type: TaskType) -> NDArray[np.int64]:
    """A fixed random order; every stretch of it has the labels of a single_label task in their proportions."""
    order = np.random.default_rng(_SEED).permutation(len(split))
    if task_type != "single_label":
        return order
    gold = split.gold[order]
    progress = np.zeros(len(split))
    for label in np.unique(gold):
        members = np.flatnonzero(gold == label)
        progress[members] = (np.arange(len(members)) + 0.5) / len(members)
    return order[np.argsort(progress, kind="stable")]


def _subset(train: Split, task_type: TaskType, rows: int | None) -> Split:
    if rows is None or rows >= len(train):
        return train
    return train.take(np.sort(_even_order(train, task_type)[:rows]))


def _hold_out(train: Split, task_type: TaskType) -> tuple[Split, Split]:
    if len(train) < HELD_OUT:
        raise InvalidData(f"without a validation split at least {HELD_OUT} training rows are needed")
    order = _even_order(train, task_type)
    keep = len(train) - len(train) // HELD_OUT
    return train.take(np.sort(order[:keep])), train.take(np.sort(order[keep:]))


def _check_variety(train: Split, task_type: TaskType) -> None:
    """Refuses training rows from which nothing can be learned."""
    if task_type == "multi_label" and not train.gold.any():
        raise InvalidData("no training row has a label")
    if task_type != "multi_label" and len(np.unique(train.gold)) < 2:
        raise InvalidData("all training rows have the same label")
