"""Reads label cells the same way for training, evaluation and `onebert diff`: the task type, and the labels."""

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any, get_args

from onebert_store.errors import InvalidData
from onebert_store.file.delta import listed
from onebert_store.file.fields import label_fault
from onebert_store.file.manifest import TaskType
from onebert_store.tables.cells import BadRow, Form, decimal_commas, find_form, plain
from onebert_store.tables.columns import (
    ANSWER_COLUMN,
    TAG_COLUMNS,
    WORD_COLUMNS,
    Columns,
    find_columns,
    find_label,
    find_label_columns,
    find_texts,
)
from onebert_store.tables.spans import find_words, have_spans
from onebert_store.tables.table import Table
from onebert_store.tables.tables import Source
from onebert_store.tables.tags import begin_inside, begun, bio_names
from onebert_store.tables.text.json_rows import parse_json

TASK_TYPES: Mapping[str, TaskType] = {**{name: name for name in get_args(TaskType)}, "extractive_qa": "span"}
ON, OFF = ("1", "true", "yes", "x"), ("0", "false", "no", "")  # cells if each label has a column of its own
AMBIGUOUS = (
    "the label cells can be names or indices of the labels listed beside the data; "
    "list labels that are not numbers if the cells are indices, list none if they are names"
)
SEVERAL = "a row of a single_label task has several labels"
NO_LABEL = "there is no label (--drop-unlabeled leaves such rows out)"


class _BadCell(str):
    """Replaces an unusable label with the reason, so that one error lists all bad rows."""


@dataclass(frozen=True)
class LabelNames:
    """Maps a column's cells to labels of a task of one type.

    Attributes:
        listed: names of the labels by index, if the source lists them.
        by_index: True if cells are indices of `listed`; None if that is unclear.
        bio: tags of other schemes -> those of BIO.
        inside: entities begin with an I-x (IO, IOB1); B-x replaces it.
        words: pattern of the words, if cells are spans of the text.
    """

    task_type: TaskType
    listed: tuple[str, ...] | None
    by_index: bool | None
    form: Form
    bio: Mapping[str, str] = field(default_factory=dict)
    inside: bool = False
    words: re.Pattern[str] | None = None

    def in_cell(self, cell: Any) -> list[str]:
        """Returns the labels that a cell names; raises BadRow, or InvalidData if cells could be names or indices."""
        if isinstance(cell, _BadCell):
            raise BadRow(str(cell))
        # Only a text file may have an empty cell for a row with none of the labels: it has no other way to write that.
        if self.task_type == "multi_label" and not isinstance(cell, str) and is_unlabeled(cell, self.task_type):
            raise BadRow(NO_LABEL)
        cells = self.form.names(cell)
        if self.task_type == "single_label":
            if len(cells) > 1:
                raise BadRow(SEVERAL)
            cells = cells or [""]
        names = [self._bio(self._name(item)) for item in cells]
        return begun(names) if self.inside else names

    @property
    def labels(self) -> tuple[str, ...] | None:
        """The labels that the source lists; tags of other schemes may be one tag of BIO."""
        if not self.listed or not (self.bio or self.inside):
            return self.listed
        names = [*map(self._bio, self.listed)]
        return tuple(dict.fromkeys([*names, *(f"B-{name[2:]}" for name in names if self.inside and name[:2] == "I-")]))

    def known(self, cell: Any, labels: Collection[str]) -> list[str]:
        """Returns the labels like `in_cell`; raises BadRow for a label that is not in `labels`."""
        names = self.in_cell(cell)
        if unknown := [name for name in names if name not in labels]:
            raise BadRow(f"the label {unknown[0][:40]!r} is not one of the {len(labels)} known ({listed(labels)})")
        return names

    def renamed(self, names: Mapping[str, str]) -> "LabelNames":
        """Returns a copy that reads labels by other names."""
        return replace(self, bio={**names, **{tag: names.get(name, name) for tag, name in self.bio.items()}})

    def _bio(self, name: str) -> str:
        return self.bio.get(name, name)

    def _name(self, cell: Any) -> str:
        spelled = plain(cell)
        if not spelled:
            raise BadRow(NO_LABEL)
        if self.by_index is None:
            raise InvalidData(AMBIGUOUS)
        if self.listed is None:
            if fault := label_fault(spelled):
                raise BadRow(f"the label {fault}")
            return spelled
        if spelled in self.listed and not self.by_index:
            return spelled
        if (index := index_of(spelled, self.listed)) is not None:
            return self.listed[index]
        raise BadRow(f"no label has the name or index {spelled[:40]!r}")


def listed_names(read: Source, label: str) -> tuple[str, ...] | None:
    """Returns the names of a column's labels by index, if the source lists them."""
    return read.label_names.get(label) or read.label_names.get("")


def has_labels(table: Table, columns: Columns) -> bool:
    """True if a table has labels: benchmarks hide the labels of a test split behind -1 or empty cells."""
    label = find_label(table, columns)
    return label is not None and not all(cell in (None, "", -1, "-1") for cell in table[label])


def is_unlabeled(cell: Any, task_type: TaskType) -> bool:
    """True if a label cell is empty, or an empty list; of a multi_label task that is a row with none of the labels."""
    if task_type != "multi_label":
        if isinstance(cell, str) and cell.strip()[:1] in ("[", "{"):
            with suppress(ValueError):
                cell = parse_json(cell)
        if isinstance(cell, list):
            return not any(map(plain, cell))
        if isinstance(cell, dict):  # as SQuAD has answers
            return bool(cell.get("text") == [])
    return not plain(cell)


def infer_task_type(read: Source, columns: Columns) -> TaskType:
    """Returns the task type that the source names, else the one that the training split suggests.

    Words, a column of tags or spans with labels suggest a token task, answers with start positions a span task.
    Otherwise lists, or a separator that the user gives, suggest a multi_label task, numbers with a fraction among
    them a regression, everything else a single_label task. The order of rows and cells without a label never matter.
    """
    if read.task_type is not None:
        if task_type := TASK_TYPES.get(str(read.task_type)):
            return task_type
        known = ", ".join(get_args(TaskType))
        raise InvalidData(f"task type {str(read.task_type)[:40]!r} is not supported; {known} are")
    table = read.tables["train"]
    texts, label = find_columns(table, columns)
    cells = table[label]
    spelled = [plain(cell) for cell in cells]
    if label.lower() == ANSWER_COLUMN or any("answer_start" in text for text in spelled):
        return "span"
    if have_spans(cells):
        return "token"
    are_words = (texts[0].lower(),) in WORD_COLUMNS or any(isinstance(cell, list) for cell in table[texts[0]])
    if are_words or label.lower() in TAG_COLUMNS:
        return "token"
    form = find_form(cells, None, columns.label_separator, _known(listed_names(read, label)))
    if form.lists or form.separator or any(isinstance(cell, list | tuple | set | frozenset) for cell in cells):
        return "multi_label"
    return "regression" if _are_fractions(spelled) else "single_label"


def _are_fractions(texts: Sequence[str]) -> bool:
    form = Form(comma=decimal_commas(texts))
    try:
        # Reads all cells first: one word among fractions makes all of them names of labels.
        numbers = [form.number(text) for text in texts if text]
    except ValueError:
        return False
    return any(math.isfinite(number) and not number.is_integer() for number in numbers)


def find_names(
    read: Source, columns: Columns, task_type: TaskType, labels: Collection[str] = ()
) -> dict[str, LabelNames]:
    """Returns for each split how to read its labels, decided on all together; `labels` are a trained task's names."""
    label_columns = {split: find_label(table, columns) for split, table in read.tables.items()}
    cells = {split: read.tables[split][label] for split, label in label_columns.items() if label is not None}
    names_listed = {split: listed_names(read, label or "") for split, label in label_columns.items()}
    if task_type == "token" and have_spans((cell for column in cells.values() for cell in column), empty=True):
        texts = {
            split: read.tables[split][name] for split in cells for name in find_texts(read.tables[split], columns) or ()
        }
        words = find_words(row for split, column in texts.items() for row in zip(column, cells[split], strict=True))
        return {split: LabelNames(task_type, None, False, Form(), words=words) for split in read.tables}
    known = _known(next(filter(None, names_listed.values()), None)) | {*labels}
    form = find_form([cell for column in cells.values() for cell in column], task_type, columns.label_separator, known)
    # Typed columns (`ClassLabel`) hold indices.
    typed = any(label in read.label_names for label in label_columns.values())
    by_index = typed or _are_indices(cells.values(), read.label_names.get("", ()), form, task_type)
    bio = dict[str, str]()
    if task_type == "token":
        tags = {name for names in names_listed.values() for name in names or ()}
        tags = tags or set[str]().union(*(_distinct(column, (), form) for column in cells.values())) - {""}
        # Tags that a trained task has stay.
        bio = {tag: name for tag, name in bio_names(tags).items() if tag not in labels}
    names = {split: LabelNames(task_type, names_listed[split], by_index, form, bio) for split in read.tables}
    kinds = begin_inside(_tags(names, cells)) if task_type == "token" else set[str]()
    # A trained task may have an I-x alone; a kind that it lacks gets both tags where others have a B-x.
    begun = not labels or any(tag.startswith("B-") for tag in labels)
    inside = begun and len(kinds) > 0 and all(f"B-{kind}" in labels or f"I-{kind}" not in labels for kind in kinds)
    renamed = [f"{tag} is {name}" for tag, name in bio.items()]
    renamed += [f"I-{kind} is B-{kind} where it begins an entity" for kind in sorted(kinds) if inside]
    if renamed:
        form = replace(form, note=f"tags get BIO's names: {listed(renamed)}")
    return {split: replace(each, form=form, inside=inside) for split, each in names.items()}


def _tags(names: Mapping[str, LabelNames], cells: Mapping[str, Sequence[Any]]) -> Iterable[list[str]]:
    for split, column in cells.items():
        for cell in column:
            with suppress(BadRow):  # reported with the other bad rows
                yield names[split].in_cell(cell)


def _known(listed: Sequence[str] | None) -> set[str]:
    return {*(listed or ()), *(str(index) for index in range(len(listed or ())))}


def _are_indices(
    columns: Iterable[Sequence[Any]], listed: Sequence[str], form: Form, task_type: TaskType
) -> bool | None:
    """True if cells are indices into the listed names; None if a cell could be read as both."""
    if not listed or task_type in ("regression", "span"):
        return False
    names, indices, both = set[str](), set[str](), set[str]()
    for column in columns:
        cells = _distinct(column, set(listed), form)
        names |= cells & set(listed)
        by_index = {spelled: listed[at] for spelled in cells if (at := index_of(spelled, listed)) is not None}
        indices |= by_index.keys()
        both |= {spelled for spelled, name in by_index.items() if spelled in listed and spelled != name}
    if both and not (names < indices or indices < names):
        return None
    return names < indices


def _distinct(cells: Sequence[Any], names: Collection[str], form: Form) -> set[str]:
    names_in_cells = set[str]()
    for cell in cells:
        spelled = plain(cell)
        with suppress(BadRow):
            names_in_cells |= {spelled} if spelled in names else set(map(plain, form.names(cell)))
    return names_in_cells


def index_of(spelled: str, names: Sequence[str]) -> int | None:
    """Returns the number that a label cell spells, if it is an index into `names`."""
    # The length is checked first: int() raises on thousands of digits.
    if spelled.isdecimal() and len(spelled) < 10 and int(spelled) < len(names):
        return int(spelled)
    return None


def are_indices(read: Source, columns: Columns, task_type: TaskType, names: Sequence[str]) -> bool:
    """True if the label cells can be nothing but indices into these names."""
    cells = [table[label] for table in read.tables.values() if (label := find_label(table, columns)) is not None]
    form = find_form([cell for column in cells for cell in column], task_type, columns.label_separator, {*names})
    return _are_indices(cells, names, form, task_type) is True


def join_label_columns(read: Source, columns: Columns, task_type: TaskType | None = None) -> tuple[Source, Columns]:
    """Replaces columns of 0 and 1, one per label, by one column; returns the source and its columns.

    The new column has a list of labels in each row, or the one label of a single_label task. A cell that is neither in
    `ON` nor in `OFF`, and several labels of a single_label task, make `LabelNames` raise BadRow.
    """
    columns_of_splits = (find_label_columns(table, columns) for table in read.tables.values())
    names = next(filter(None, columns_of_splits), ())
    if not names or columns.label is None:
        return read, columns
    tables = {split: _joined(table, columns, names, task_type) for split, table in read.tables.items()}
    label_names = {name: names_of for name, names_of in read.label_names.items() if name}
    return replace(read, tables=tables, label_names={**label_names, columns.label: names}), columns


def _joined(table: Table, columns: Columns, names: tuple[str, ...], task_type: TaskType | None) -> Table:
    label_columns = find_label_columns(table, columns)
    if not label_columns or columns.label is None:
        return table  # a test split may lack labels; for other splits the missing column is rejected later
    rows = zip(*([plain(cell).lower() for cell in table[name]] for name in label_columns), strict=True)
    return table.with_column(columns.label, [_joined_cell(label_columns, row, task_type) for row in rows], names)


def _joined_cell(names: Sequence[str], cells: Sequence[str], task_type: TaskType | None) -> Any:
    for name, cell in zip(names, cells, strict=True):
        if cell not in ON and cell not in OFF:
            return _BadCell(f"the column {name[:40]} of a label holds neither 0 nor 1")
    # Labels are written as indices, because a label's name may itself be a number.
    on = [index for index, cell in enumerate(cells) if cell in ON]
    if task_type != "single_label":
        return on
    return _BadCell(SEVERAL) if len(on) > 1 else on[0] if on else None
