"""Reads rows for versions to answer: texts, kept cells, places, and right answers if the data have them."""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from onebert_server.client import Input
from onebert_store.errors import InvalidData
from onebert_store.file.manifest import Manifest, TaskType
from onebert_store.file.strict_json import printable
from onebert_store.tables.cells import BadRow, plain
from onebert_store.tables.columns import (
    Columns,
    columns_of_all,
    named,
    require_label,
    require_texts,
    texts_of_rows,
    trained_columns,
)
from onebert_store.tables.label_studio import plain_source
from onebert_store.tables.labels import LabelNames, find_names, has_labels, is_unlabeled, join_label_columns
from onebert_store.tables.table import Table, describe_bad_rows
from onebert_store.tables.tables import Source, choose_split


@dataclass(frozen=True)
class LabeledRow:
    """A row: its input, its place, its labels or its number (None without any), and its cells in kept columns."""

    input: Input
    place: dict[str, Any]
    label: tuple[str, ...] | float | None
    cells: Mapping[str, str] = field(default_factory=dict)

    @property
    def right(self) -> str | None:
        """The labels in the form of an answer: several are joined by `|`."""
        return "|".join(self.label) if isinstance(self.label, tuple) else None

    @property
    def text(self) -> str:
        """The input for people."""
        return self.input if isinstance(self.input, str) else " | ".join(self.input)

    @property
    def where(self) -> str:
        """The place for people: `line 7`, or `a.csv line 7` if there are several files."""
        unit, number = [*self.place.items()][-1]
        return f"{printable(self.place['file'])} {unit} {number}" if "file" in self.place else f"{unit} {number}"


def labeled_rows(
    read: Source, split: str | None, columns: Columns, manifests: Sequence[Manifest], keep: Sequence[str] = ()
) -> list[LabeledRow]:
    """The rows of one split, read as by `onebert evaluate`; labels are read if all versions answer labels or a number.

    A column that is not named is the one of the versions' training.

    `split` None is test, or validation if there is no test; a label column that is not named may be missing. `keep` are
    further columns. Raises InvalidData for a missing split, column or text, and for a label that no version has.
    """
    task_type = _label_type(manifests)
    trained = [trained_columns(manifest) for manifest in manifests]
    read = plain_source(read, columns if columns.label else trained[0])
    columns = columns_of_all(columns, trained, next(iter(read.tables.values())))
    separators = [columns.label_separator, *(each.label_separator for each in trained)]
    columns = replace(columns, label_separator=next(filter(None, separators), None))
    read, columns = join_label_columns(read, columns, task_type)
    name = choose_split(read, split)
    table = read.tables[name]
    texts = texts_of_rows(table, [table[name] for name in require_texts(table, columns)])
    right: Sequence[tuple[str, ...] | float | None] = [None] * len(texts)
    if columns.label is not None:
        require_label(table, columns)
    if task_type is not None and has_labels(table, columns):
        known = {label for manifest in manifests for label in manifest.labels}
        names = find_names(read, columns, task_type, known)[name]
        right = _right(table, require_label(table, columns), names, task_type, known)
    cells = {name: table[_column(table, name)] for name in keep}
    return [
        LabeledRow(text, table.place(row), right[row], {name: plain(cells[name][row]) for name in keep})
        for row, text in enumerate(texts)
    ]


def _label_type(manifests: Sequence[Manifest]) -> TaskType | None:
    """The task type for reading labels; None if an answer is neither labels of the whole text nor a number."""
    types = {manifest.task_type for manifest in manifests}
    if types == {"regression"}:
        return "regression"
    if not types <= {"single_label", "multi_label"}:
        return None
    return "multi_label" if "multi_label" in types else "single_label"


def _right(
    table: Table, label: str, names: LabelNames, task_type: TaskType, known: Collection[str]
) -> list[tuple[str, ...] | float | None]:
    """The labels of each row, sorted, or its number."""
    labels_of_rows, bad = list[tuple[str, ...] | float | None](), dict[str, list[int]]()
    for row, cell in enumerate(table[label]):
        if task_type != "multi_label" and is_unlabeled(cell, task_type):
            labels_of_rows.append(None)
            continue
        try:
            labels = () if task_type == "regression" else tuple(sorted(names.known(cell, task_type, known)))
            labels_of_rows.append(_number(names, cell) if task_type == "regression" else labels)
        except BadRow as problem:
            bad.setdefault(str(problem), []).append(row)
    if bad:
        raise InvalidData(describe_bad_rows(bad, table.where))
    return labels_of_rows


def _number(names: LabelNames, cell: Any) -> float:
    try:
        number = names.form.number(cell)
    except (ValueError, TypeError, OverflowError):
        number = math.nan
    if not math.isfinite(number):
        raise BadRow("the label is not a number")
    return number


def _column(table: Table, name: str) -> str:
    if (column := named(table, name)) is None:
        raise InvalidData(f"the data have no column {printable(name)}")
    return column
