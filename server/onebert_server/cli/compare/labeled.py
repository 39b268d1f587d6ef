"""Reads labeled rows, of one task or of many: texts, places, slices, and right answers if the data have them."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from onebert_server.client import Input
from onebert_store.errors import InvalidData
from onebert_store.file.manifest import Manifest, TaskType
from onebert_store.file.strict_json import shown
from onebert_store.tables.cells import BadRow
from onebert_store.tables.columns import Columns, require_label, require_texts, texts_of_rows
from onebert_store.tables.labels import LabelNames, find_names, has_labels, is_unlabeled, join_label_columns
from onebert_store.tables.places import said_of_rows
from onebert_store.tables.records import extension_of
from onebert_store.tables.slices import cells_of, group
from onebert_store.tables.table import Table
from onebert_store.tables.tables import choose_split, read_source


@dataclass(frozen=True)
class LabeledRow:
    """A row: its input, its place, its label in the form of an answer (None without one), its values by slice."""

    input: Input
    place: dict[str, Any]
    right: str | None
    slices: Mapping[str, str] = field(default_factory=dict)

    @property
    def text(self) -> str:
        """The input for people."""
        return self.input if isinstance(self.input, str) else " | ".join(self.input)

    @property
    def where(self) -> str:
        """The place for people: `line 7`, or `a.csv line 7` if there are several files."""
        unit, number = [*self.place.items()][-1]
        return f"{shown(self.place['file'])} {unit} {number}" if "file" in self.place else f"{unit} {number}"


class HowToRead(NamedTuple):
    """The user's options for reading rows.

    `split` None is test, or validation if there is no test; `slices` are columns by whose values answers are counted.
    """

    columns: Columns = Columns()
    split: str | None = None
    encoding: str | None = None
    sheet: str | None = None
    slices: Sequence[str] = ()


def files_of_tasks(folder: Path) -> dict[str, Path]:
    """The data of each task in a folder: a folder or a file that is named like the task.

    Raises InvalidData if two have one name, or there is no such folder.
    """
    if not folder.is_dir():
        raise InvalidData(f"there is no folder {folder}; it has a folder or a file of rows for each task")
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        ending = "" if path.is_dir() else extension_of(path.name)
        if path.name.startswith(".") or not (ending or path.is_dir()):
            continue
        name = path.name[: len(path.name) - len(ending)]
        if (other := found.setdefault(name, path)) != path:
            raise InvalidData(f"two have the rows of {name}: {other.name} and {path.name}")
    return found


def labeled_rows(data: str, how: HowToRead, manifests: Sequence[Manifest]) -> list[LabeledRow]:
    """The rows of one split, read as by `onebert evaluate`; labels are read if all versions answer labels.

    A label column that is not named may be missing. Raises InvalidData for data that are not there, for a missing
    split, column or text, and for a label that no version has; InvalidSettings for a missing column of a slice.
    """
    task_type = _label_type(manifests)
    read = read_source(data, how.encoding, sheet=how.sheet)
    read, columns = join_label_columns(read, how.columns, task_type)
    name = choose_split(read, how.split)
    table = read.tables[name]
    texts = texts_of_rows(table, [table[name] for name in require_texts(table, columns)])
    right: Sequence[str | None] = [None] * len(texts)
    if columns.label is not None:
        require_label(table, columns)
    if task_type is not None and has_labels(table, columns):
        known = {one for manifest in manifests for one in manifest.labels}
        names = find_names(read, columns, task_type, known)[name]
        right = _right(table, require_label(table, columns), names, task_type, known)
    slices = [_values(table, column) for column in how.slices]
    values = [dict(zip(how.slices, each, strict=True)) for each in zip(*slices, strict=True)] or [{}] * len(texts)
    return [LabeledRow(text, table.place(row), right[row], values[row]) for row, text in enumerate(texts)]


def _values(table: Table, column: str) -> list[str]:
    """The name of each row's value, as `onebert evaluate --slice` has it."""
    found = {row: value for value, rows in group(cells_of(table, column)).items() for row in rows.tolist()}
    return [found[row] for row in range(table.rows)]


def _label_type(manifests: Sequence[Manifest]) -> TaskType | None:
    """The task type for reading labels; None if an answer is not labels of the whole text."""
    types = {manifest.task_type for manifest in manifests}
    if not types <= {"single_label", "multi_label"}:
        return None
    return "multi_label" if "multi_label" in types else "single_label"


def _right(
    table: Table, label: str, names: LabelNames, task_type: TaskType, known: Collection[str]
) -> list[str | None]:
    """Labels in the form of answers: several are sorted and joined by `|`."""
    found, bad = list[str | None](), dict[str, list[int]]()
    for row, cell in enumerate(table[label]):
        if task_type == "single_label" and is_unlabeled(cell):
            found.append(None)
            continue
        try:
            found.append("|".join(sorted(names.known(cell, task_type, known))))
        except BadRow as problem:
            bad.setdefault(str(problem), []).append(row)
    if bad:
        raise InvalidData(said_of_rows(bad, table.where))
    return found
