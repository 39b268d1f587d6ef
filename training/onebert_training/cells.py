"""The cells of one split to examples: which columns, which label names, and the first bad row."""

import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.tokens import Text
from onebert_store.errors import InvalidData
from onebert_store.manifest import MAX_LABELS, TaskType
from onebert_training.tables import Source, Table

# Pairs stand before single texts, and of several that fit the first wins.
TEXT_COLUMNS: Sequence[tuple[str, ...]] = (
    *(("text", "text_pair"), ("sentence1", "sentence2"), ("question1", "question2"), ("text1", "text2")),
    *(("premise", "hypothesis"), ("question", "sentence"), ("query", "passage")),
    *((name,) for name in ("text", "sentence", "sentence1", "question", "utterance", "premise", "query")),
    *((name,) for name in ("content", "message", "review", "title")),
)
LABEL_COLUMNS = ("label", "labels", "target", "score", "class", "category", "intent")
REGRESSION_LABEL = "score"
MAX_NUMBER = float(np.finfo(np.float32).max)
AMBIGUOUS = (
    "the label cells can be names or indices of the labels listed beside the data; "
    "list labels that are not numbers if the cells are indices, list none if they are names"
)


@dataclass(frozen=True)
class Columns:
    """Which columns hold what; None is found by name."""

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None

    def __post_init__(self) -> None:
        if self.text_pair is not None and self.text is None:
            raise InvalidData("a column for text_pair needs one for text, too")


@dataclass(frozen=True)
class Split:
    """Examples of one split.

    Attributes:
        texts: the inputs, a text or a pair each.
        gold: [n] int64 label indices, [n, C] float32 zeros and ones, or [n] float32 numbers, by task type.
    """

    texts: tuple[Text, ...]
    gold: NDArray[Any]

    def __len__(self) -> int:
        return len(self.texts)

    def take(self, indices: NDArray[np.int64]) -> "Split":
        """The examples at these places."""
        return Split(tuple(self.texts[i] for i in indices.tolist()), self.gold[indices])


def find_label(table: Table, columns: Columns) -> str | None:
    """Name of the column that holds the labels; None where it is not there."""
    if columns.label is not None:
        return columns.label if columns.label in table else None
    by_lower = {name.lower(): name for name in table}
    return next((by_lower[name] for name in LABEL_COLUMNS if name in by_lower), None)


def find_texts(table: Table, columns: Columns) -> tuple[str, ...] | None:
    """Names of the one or two columns that hold the text; None where they are not there."""
    if columns.text is not None:
        wanted = (columns.text,) if columns.text_pair is None else (columns.text, columns.text_pair)
        return wanted if all(name in table for name in wanted) else None
    by_lower = {name.lower(): name for name in table}
    found = next((names for names in TEXT_COLUMNS if all(name in by_lower for name in names)), None)
    return None if found is None else tuple(by_lower[name] for name in found)


def cells_are_indices(tables: Iterable[Table], columns: Columns, read: Source) -> bool | None:
    """Whether label cells are indices into the source's list of names, by all splits at once; None: it cannot be told.

    Cells of both kinds may be mixed as long as none can be read in two ways.
    """
    names, indices, both = set[str](), set[str](), set[str]()
    for table in tables:
        label = find_label(table, columns)
        if label is None:
            continue
        if label in read.label_names:
            return True  # the column's own type says so
        listed = read.label_names.get("", ())
        cells = _distinct(table[label], set(listed))
        names |= cells & set(listed)
        places = {plain: listed[index] for plain in cells if (index := _index(plain, listed)) is not None}
        indices |= places.keys()
        both |= {plain for plain, name in places.items() if plain in listed and plain != name}
    if both and not (names < indices or indices < names):
        return None
    return names < indices


class Cells:
    """The text and label cells of one split, before they are known to be good.

    Args:
        by_index: what `cells_are_indices` says of all splits.
    """

    def __init__(self, split: str, table: Table, columns: Columns, read: Source, by_index: bool | None) -> None:
        texts, label = find_texts(table, columns), find_label(table, columns)
        there = ", ".join(name[:40] for name in list(table)[:10])
        if texts is None:
            which = "no text column; say which with --text" if columns.text is None else f"no column {columns.text}"
            raise InvalidData(f"{split} split: {which} (the columns are {there})")
        if label is None:
            which = "no label column; say which with --label" if columns.label is None else f"no column {columns.label}"
            raise InvalidData(f"{split} split: {which} (the columns are {there})")
        self.where = split
        self.texts = [table[name] for name in texts]
        self.names = read.label_names.get(label) or read.label_names.get("")
        self.labels = table[label]
        self.by_index = by_index

    def split(self, task_type: TaskType, labels: tuple[str, ...]) -> Split:
        """Texts and gold labels; raises InvalidData with the first bad row."""
        index = {name: i for i, name in enumerate(labels)}
        gold = [self._gold(row, task_type, index) for row in range(len(self.labels))]
        return Split(
            tuple(self._text(row) for row in range(len(self.labels))),
            np.array(gold, dtype=np.int64 if task_type == "single_label" else np.float32),
        )

    def _text(self, row: int) -> Text:
        cells = [column[row] for column in self.texts]
        for cell in cells:
            if not isinstance(cell, str) or not cell.strip() or not _is_unicode(cell):
                raise InvalidData(f"{self.where} row {row + 1}: the text is empty or not a text")
        return cells[0] if len(cells) == 1 else (cells[0], cells[1])

    def _gold(self, row: int, task_type: TaskType, index: Mapping[str, int]) -> Any:
        if task_type == "regression":
            return self._number(row)
        if task_type == "single_label":
            return self._place(row, self.name(row, self.labels[row]), index)
        ones = [0.0] * len(index)
        for name in self.row_names(row):
            ones[self._place(row, name, index)] = 1.0
        return ones

    def _number(self, row: int) -> float:
        try:
            value = float(self.labels[row])
        except (TypeError, ValueError):
            value = math.nan
        # It is kept as float32, where more would be infinite.
        if not abs(value) <= MAX_NUMBER:
            raise InvalidData(f"{self.where} row {row + 1}: the label is not a number, or too large")
        return value

    def row_names(self, row: int) -> list[str]:
        """Label names of a row of a multi_label task."""
        return [self.name(row, cell) for cell in _several(self.labels[row])]

    def name(self, row: int, cell: Any) -> str:
        """Label name of a cell; raises InvalidData where there is none."""
        plain = _plain(cell)
        if not plain:
            raise InvalidData(f"{self.where} row {row + 1} has no label")
        if self.by_index is None:
            raise InvalidData(AMBIGUOUS)
        if self.names is None or (plain in self.names and not self.by_index):
            return plain
        if (index := _index(plain, self.names)) is not None:
            return self.names[index]
        raise InvalidData(f"{self.where} row {row + 1}: no label has this name or index")

    def _place(self, row: int, name: str, index: Mapping[str, int]) -> int:
        if name not in index:
            raise InvalidData(f"{self.where} row {row + 1} has a label that is not one of the {len(index)} known")
        return index[name]


def _is_unicode(text: str) -> bool:
    """Whether the text has no half surrogate pairs, which JSON can spell and a tokenizer cannot read."""
    return text.isascii() or not any("\ud800" <= character <= "\udfff" for character in text)


def _plain(cell: Any) -> str:
    """A label cell as text; 1.0 from a column with gaps is 1."""
    if cell is None:
        return ""
    if isinstance(cell, float) and cell.is_integer():
        return str(int(cell))
    return str(cell).strip()


def _index(plain: str, names: Sequence[str]) -> int | None:
    """The index that a label cell spells, if there is a name at it."""
    # The length is checked first: int() refuses thousands of digits with an error of its own.
    if plain.isdecimal() and len(plain) < 10 and int(plain) < len(names):
        return int(plain)
    return None


def _distinct(cells: Sequence[Any], names: Collection[str]) -> set[str]:
    """The label cells as texts; what is not a name as a whole may be several labels."""
    found = set()
    for cell in cells:
        plain = _plain(cell)
        found |= {plain} if plain in names else set(map(_plain, _several(cell)))
    return found


def _several(cell: Any) -> list[Any]:
    """The labels in a cell of a multi_label task: a list, a JSON list, or names joined by `|`; empty is none."""
    if isinstance(cell, str) and cell.lstrip().startswith("["):
        with suppress(ValueError):
            cell = json.loads(cell)
    if isinstance(cell, list):
        return cell
    return [part for part in _plain(cell).split("|") if part.strip()]


def infer_task_type(read: Source, labels: Sequence[Any]) -> TaskType:
    """What the source says; else lists or `|` are multi_label, fractions regression, the rest single_label."""
    if read.task_type is not None:
        known: tuple[TaskType, ...] = get_args(TaskType)
        for task_type in known:
            if task_type == read.task_type:
                return task_type
        raise InvalidData(f"task type {read.task_type[:40]!r} is not supported; {', '.join(known)} are")
    texts = [_plain(cell) for cell in labels]
    if any(isinstance(cell, list) or "|" in text or text[:1] == "[" for cell, text in zip(labels, texts, strict=True)):
        return "multi_label"
    return "regression" if _are_fractions(texts) else "single_label"


def _are_fractions(texts: Sequence[str]) -> bool:
    try:
        return any(not float(text).is_integer() for text in texts)
    except ValueError:
        return False


def label_names(task_type: TaskType, train: Cells) -> tuple[str, ...]:
    """The source's label names, else the distinct labels of the training split in order."""
    if task_type == "regression":
        return (REGRESSION_LABEL,)
    if train.names is not None:
        return train.names
    rows = range(len(train.labels))
    if task_type == "multi_label":
        found = {name for row in rows for name in train.row_names(row)}
    else:
        found = {train.name(row, train.labels[row]) for row in rows}
    if len(found) > MAX_LABELS:
        raise InvalidData(f"the labels have {len(found)} different values; a task has at most {MAX_LABELS}")
    if all(name.isdecimal() for name in found):
        return tuple(sorted(found, key=lambda name: (int(name), name)))
    return tuple(sorted(found))
