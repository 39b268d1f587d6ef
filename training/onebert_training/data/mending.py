"""Mends one table for `onebert check --out`: one spelling for each label, and equal rows once."""

import json
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from onebert_store.errors import InvalidSettings
from onebert_store.file.fields import spelling
from onebert_store.file.manifest import TaskType
from onebert_store.tables.cells import BadRow
from onebert_store.tables.columns import Columns, find_columns, find_label_columns
from onebert_store.tables.labels import LabelNames, find_names
from onebert_store.tables.table import Place, Table
from onebert_store.tables.tables import Source
from onebert_training.data.dataset import usable_rows
from onebert_training.data.options import DataOptions

_OF_TEXTS: frozenset[TaskType] = frozenset({"single_label", "multi_label"})


@dataclass(frozen=True)
class Mended:
    """A mended source, whose rows keep their places in the file that was read.

    Attributes:
        folded: spelling -> the spelling that has replaced it.
        changed: number of rows whose label cell is another one now.
        dropped: rows that are equal to an earlier one.
    """

    source: Source
    folded: Mapping[str, str]
    changed: int
    dropped: tuple[Place, ...]

    @property
    def table(self) -> Table:
        return self.source.tables["train"]


def mend(source: Source, options: DataOptions, fold_labels: bool, drop_duplicates: bool) -> Mended:
    """Folds labels and drops repeated rows of a single file, in this order; `--drop-…` options leave out rows before.

    Raises:
        InvalidSettings: the data are not one file of texts with labels in one column.
        InvalidData: there is no text or no label column.
    """
    if not source.single_file:
        raise InvalidSettings("--fold-labels and --drop-duplicates mend one file: name the files of the folder singly")
    columns = options.columns
    if find_label_columns(source.tables["train"], columns):
        raise InvalidSettings("--fold-labels and --drop-duplicates read labels in one column, not in one each")
    source, columns, task_type, _ = usable_rows(source, options, options.task_type)
    if fold_labels and task_type not in _OF_TEXTS:
        raise InvalidSettings(f"--fold-labels is for labels of whole texts, not for a {task_type} task")
    table, names = source.tables["train"], find_names(source, columns, task_type)["train"]
    folded, changed = dict[str, str](), 0
    if fold_labels:
        table, folded, changed = _folded(table, columns, names)
    dropped: list[int] = _repeated(table, columns, names) if drop_duplicates else []
    places = tuple(table.places[row] for row in dropped)
    rows = sorted({*range(table.rows)}.difference(dropped))
    return Mended(replace(source, tables={"train": table.take(rows)}), folded, changed, places)


def spellings(counts: Mapping[str, int]) -> dict[str, str]:
    """Label -> the most frequent name with its `spelling`, before names that do not show as they are."""
    alike = defaultdict[str, list[str]](list)
    for name in counts:
        alike[spelling(name)].append(name)

    def shown(name: str) -> bool:
        return name.isprintable() and unicodedata.normalize("NFC", name) == name

    # The first spelling in the file wins among equally frequent ones.
    best = {
        name: max(group, key=lambda each: (shown(each), counts[each])) for group in alike.values() for name in group
    }
    return {name: label for name, label in best.items() if name != label}


def _folded(table: Table, columns: Columns, names: LabelNames) -> tuple[Table, dict[str, str], int]:
    _, label = find_columns(table, columns)
    if label not in list(table):
        raise InvalidSettings("--fold-labels: the label is a field of an object; give labels a column of their own")
    if names.listed is not None:
        raise InvalidSettings("--fold-labels: the data list the names of their labels; change that list")
    rows = [_labels(names, cell) for cell in table[label]]
    folded = spellings(Counter(name for row in rows for name in row))
    cells = [
        _written(cell, list(dict.fromkeys(folded.get(name, name) for name in row)), names)
        if folded.keys() & {*row} or (isinstance(cell, str) and row and cell != cell.strip())
        else cell
        for cell, row in zip(table[label], rows, strict=True)
    ]
    changed = sum(new is not old for new, old in zip(cells, table[label], strict=True))
    return table.with_column(label, cells, ()), folded, changed


def _written(cell: Any, labels: list[str], names: LabelNames) -> Any:
    if isinstance(cell, list | tuple | set | frozenset):
        return labels
    if names.form.lists and str(cell).lstrip()[:1] in "[({":
        return json.dumps(labels, ensure_ascii=False)
    return (names.form.separator or "").join(labels)


def _labels(names: LabelNames, cell: Any) -> Iterable[str]:
    try:
        return names.in_cell(cell)
    except BadRow:  # `examine` names the row
        return ()


def _repeated(table: Table, columns: Columns, names: LabelNames) -> list[int]:
    texts, label = find_columns(table, columns)
    seen, rows = set[Any](), list[int]()
    for row, (cell, *text) in enumerate(zip(table[label], *(table[name] for name in texts), strict=True)):
        labels = frozenset(_labels(names, cell) if names.task_type in _OF_TEXTS else ())
        key = (tuple(map(repr, text)), labels, None if labels else repr(cell))
        if key in seen:
            rows.append(row)
        seen.add(key)
    return rows
