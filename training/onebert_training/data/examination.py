"""Examines data before training: counts, lengths, repetitions, leaks between splits, and every bad row."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import combinations
from typing import Any

import numpy as np

from onebert_encoder.text.tokens import Text
from onebert_store.errors import InvalidData
from onebert_store.file.manifest import TaskType
from onebert_store.tables.columns import find_columns
from onebert_store.tables.labels import find_names
from onebert_store.tables.records import BETWEEN_COLUMNS
from onebert_store.tables.table import Place, Table
from onebert_store.tables.tables import SPLITS, Fault, Faults, Source
from onebert_training.data.checks import repeated
from onebert_training.data.dataset import Dataset, load_dataset, usable_rows
from onebert_training.data.examples import Cells, Split
from onebert_training.data.options import DataOptions

MAX_LISTED = 1000  # bad rows and examples that a report lists one by one
# Below this, a 10 % hold-out has no row of the label and one of five folds fewer than two.
FEW_ROWS = 10

Lengths = Callable[[Sequence[Text]], np.ndarray[Any, np.dtype[np.int64]]]


@dataclass
class Examination:
    """The result of `examine`.

    Attributes:
        source: the tables without unreadable rows; None if nothing could be read.
        dataset: the data for training; None if training would refuse it.
        rows: by split, the examples and the place of each in its file.
    """

    source: Source | None = None
    dataset: Dataset | None = None
    rows: dict[str, tuple[Split, Sequence[Place]]] = field(default_factory=dict)
    bad: list[Fault] = field(default_factory=list)
    facts: dict[str, Any] = field(default_factory=lambda: {"refused": [], "notes": []})

    def refuse(self, why: str) -> None:
        """Records a reason why training would refuse the data."""
        if why not in self.facts["refused"]:
            self.facts["refused"].append(why)


def examine(
    data: str | Source, options: DataOptions, max_length: int, lengths: Lengths, faults: Faults | None = None
) -> Examination:
    """Reads data as training does, and continues after faults; `lengths` counts tokens with the special ones.

    `faults` are those that were found when a `Source` was read.
    """
    examination, faults = Examination(), faults or Faults()
    try:
        read = options.read(data, faults) if isinstance(data, str) else data
        examination.source = read
        examination.facts["files"] = [kind for table in read.tables.values() for kind in table.kinds]
        examination.facts["rows"] = {split: table.rows for split, table in read.tables.items()}
        examination.facts["notes"] = [note for table in read.tables.values() for note in table.notes]
        _examine_tables(read, options, examination, max_length, lengths)
    except InvalidData as error:
        examination.refuse(error.detail)
    for why in faults.broken:
        examination.refuse(why)
    _count_bad(examination, faults)
    if examination.source is not None and not examination.facts["refused"]:
        try:
            examination.dataset = load_dataset(examination.source, options, keep_few=True)
            examination.facts["notes"] = list(examination.dataset.notes)
        except InvalidData as error:
            examination.refuse(error.detail)
    # `files` has the separator of each.
    examination.facts["notes"] = [note for note in examination.facts["notes"] if not note.endswith(BETWEEN_COLUMNS)]
    return examination


def _examine_tables(
    read: Source, options: DataOptions, examination: Examination, max_length: int, lengths: Lengths
) -> None:
    if "train" not in read.tables:
        raise InvalidData("the data has no training split")
    read, columns, task_type, _ = usable_rows(read, options, options.task_type)
    tables = read.tables
    texts, label = find_columns(tables["train"], columns)
    examination.facts |= {"task_type": task_type, "text": list(texts), "label": label}
    names = find_names(read, columns, task_type)
    cells = dict[str, Cells]()
    for split, table in tables.items():
        try:
            cells[split] = Cells(table, columns, names[split])
            examination.facts["notes"] += cells[split].left_out
        except InvalidData as error:
            examination.refuse(error.detail)
    if "train" not in cells:
        return
    labels = cells["train"].label_names()
    tables = {name: part.table for name, part in cells.items()}
    splits, bad = {}, dict[str, dict[str, list[int]]]()
    for name, part in cells.items():
        splits[name] = part.split(labels, bad.setdefault(name, {}))
    for name, kinds in bad.items():
        examination.bad += [Fault(tables[name].places[row], message) for message, rows in kinds.items() for row in rows]
    for name, examples in splits.items():
        examination.rows[name] = examples, [tables[name].places[row] for row in cells[name].used_rows]
    examination.facts["splits"] = {
        name: {
            "rows": len(split),
            **_of_labels(split, task_type, labels),
            "tokens": _of_lengths(lengths(split.texts), max_length),
        }
        for name, split in splits.items()
    }
    examination.facts["few"] = _few(examination.facts["splits"]["train"].get("labels", {}))
    examination.facts |= _repeated(splits, {name: (tables[name], cells[name].used_rows) for name in splits}, task_type)


def _count_bad(examination: Examination, faults: Faults) -> None:
    bad = sorted([*faults.rows, *examination.bad])
    first = [{"file": file, unit: number, "what": message} for (file, unit, number), message in bad[:MAX_LISTED]]
    examination.facts["bad"] = {"rows": len(bad), "first": first}
    if bad:
        examination.refuse(f"{len(bad):,} bad row{'s' * (len(bad) > 1)}")


def _of_labels(split: Split, task_type: TaskType, labels: Sequence[str]) -> dict[str, Any]:
    if task_type == "regression" and len(split):
        # In float32 the square of a large number overflows.
        numbers = split.gold.astype(np.float64)
        facts = {"least": numbers.min(), "mean": numbers.mean(), "most": numbers.max(), "deviation": numbers.std()}
        return {"numbers": {name: round(float(value), 4) for name, value in facts.items()}}
    counts = split.label_counts(task_type, len(labels))
    by_label: dict[str, Any] = {} if counts is None else {"labels": dict(zip(labels, counts.tolist(), strict=True))}
    if task_type == "multi_label":
        by_label["without"] = int((split.gold.sum(axis=1) == 0).sum()) if len(split) else 0
    return by_label


def _of_lengths(lengths: np.ndarray[Any, np.dtype[np.int64]], max_length: int) -> dict[str, Any]:
    if not len(lengths):
        return {}
    shares = (("median", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("longest", 100))
    cut = int((lengths > max_length).sum())
    return {
        # "higher" gives a length that occurs, not one between two.
        **{name: int(np.percentile(lengths, share, method="higher")) for name, share in shares},
        "max_length": max_length,
        "cut": cut,
        "cut_share": round(cut / len(lengths), 6),
    }


def _few(labels: Mapping[str, int]) -> dict[str, int]:
    if not any(labels.values()):
        return {}
    return {name: count for name, count in sorted(labels.items(), key=lambda item: item[1]) if count < FEW_ROWS}


def _repeated(
    splits: Mapping[str, Split], places: Mapping[str, tuple[Table, Sequence[int]]], task_type: TaskType
) -> dict[str, Any]:
    repeats = {name: repeated(split, task_type) for name, split in splits.items()}
    torn = [(name, rows) for name, repeat in repeats.items() for rows in repeat.torn]
    return {
        "duplicates": {name: repeat.rows for name, repeat in repeats.items()},
        "contradictions": {
            "texts": len(torn),
            "first": [_where(places[name], rows) for name, rows in torn[:MAX_LISTED]],
        },
        "leaks": list(_leaks({name: repeat.rows_of for name, repeat in repeats.items()}, places)),
    }


def _leaks(
    rows_of: Mapping[str, Mapping[Text, list[int]]], places: Mapping[str, tuple[Table, Sequence[int]]]
) -> Iterable[dict[str, Any]]:
    for first_split, other in combinations([name for name in SPLITS if name in rows_of], 2):
        shared = [text for text in rows_of[other] if text in rows_of[first_split]]
        if shared:
            first = [f"{_where(places[other], rows_of[other][text])}" for text in shared[:MAX_LISTED]]
            rows = sum(len(rows_of[other][text]) for text in shared)
            yield {"split": other, "of": first_split, "rows": rows, "first": first}


def _where(place: tuple[Table, Sequence[int]], rows: Sequence[int]) -> str:
    table, row_numbers = place
    return table.where([row_numbers[row] for row in rows])
