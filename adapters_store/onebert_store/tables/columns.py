"""Finds a table's text and label columns, by the names that data sets use or by the caller's choice."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from onebert_store.errors import InvalidData, InvalidInput
from onebert_store.file.card import card_of
from onebert_store.file.manifest import Manifest
from onebert_store.file.strict_json import printable
from onebert_store.suggestion import suggestion
from onebert_store.tables.table import Table, describe_bad_rows
from onebert_store.tables.text.unicode import text_fault

# Pairs come before single texts; the first entry whose columns all exist wins.
TEXT_COLUMNS: Sequence[tuple[str, ...]] = (
    *(("text", "text_pair"), ("sentence1", "sentence2"), ("question1", "question2"), ("text1", "text2")),
    *(("premise", "hypothesis"), ("question", "sentence"), ("query", "passage"), ("question", "context")),
    *((name,) for name in ("text", "sentence", "sentence1", "question", "utterance", "premise", "query")),
    *((name,) for name in ("content", "message", "review", "title")),
)
WORD_COLUMNS: Sequence[tuple[str, ...]] = (("tokens",), ("words",))
TAG_COLUMNS = ("ner_tags", "tags", "pos_tags")
ANSWER_COLUMN = "answers"
SPAN_COLUMNS = ("spans", "entities", "ents")
LONGEST_NAME = 40  # characters of a column's name at most; a longer one is a text
LABEL_COLUMNS = (
    "label",
    "labels",
    "target",
    "score",
    "class",
    "category",
    "intent",
    *TAG_COLUMNS,
    ANSWER_COLUMN,
    *SPAN_COLUMNS,
)


@dataclass(frozen=True)
class Columns:
    """The columns to use; None finds a column by the names that data sets use.

    Attributes:
        text: a name, or `a.b` for the field `b` of the objects in a column `a`.
        label: a name, or the names of several columns joined by commas: one per label of a multi_label task, with 0 or
            1 in its cells.
        label_separator: stands between names in a label cell; None takes a cell's text for one name.
    """

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    label_separator: str | None = None

    def __post_init__(self) -> None:
        if self.text_pair is not None and self.text is None:
            raise InvalidData("a column for text_pair needs one for text, too")


def trained_columns(manifest: Manifest) -> Columns:
    """The columns that a version was trained on, by its card."""
    read = card_of(manifest).read
    if read.text is None and read.text_pair is not None:
        return Columns()
    return Columns(read.text, read.text_pair, read.label, read.label_separator)


def columns_of_all(columns: Columns, trained: Sequence[Columns], table: Table) -> Columns:
    """The columns that are `remembered` of several trainings; raises InvalidInput if they read different texts."""
    each = [remembered(columns, columns_of_one, table) for columns_of_one in trained]
    places = {find_texts(table, columns) or (columns.text, columns.text_pair) for columns in each}
    if len(places) > 1:
        names = " and ".join(sorted({name for texts in places for name in texts if name}))
        raise InvalidInput(f"{table.origin}: the tasks were trained on different columns, {names}: name one by --text")
    return each[0]


def remembered(columns: Columns, trained: Columns, table: Table) -> Columns:
    """Adds the columns of a training where none are named, unless the table lacks them and has usual names."""
    has_texts, has_label = find_texts(table, trained), find_label(table, trained) or find_label_columns(table, trained)
    if columns.text is None and (has_texts or not find_texts(table, columns)):
        columns = replace(columns, text=trained.text, text_pair=trained.text_pair)
    if columns.label is None and (has_label or not find_label(table, columns)):
        separator = columns.label_separator or trained.label_separator
        columns = replace(columns, label=trained.label, label_separator=separator)
    return columns


def named(table: Table, name: str) -> str | None:
    """Finds a column by its exact name, else the one column that differs only in case or outer spaces."""
    if name in table:
        return name
    alike = [column for column in table if column.strip().lower() == name.strip().lower()]
    return alike[0] if len(alike) == 1 else None


def find_label(table: Table, columns: Columns) -> str | None:
    """Returns the name of the label column, or None."""
    if columns.label is not None:
        return named(table, columns.label)
    return next((column for name in LABEL_COLUMNS if (column := named(table, name)) is not None), None)


def find_label_columns(table: Table, columns: Columns) -> tuple[str, ...]:
    """Returns the columns if each label has one of its own; empty if one column holds all labels."""
    if columns.label is None or "," not in columns.label or named(table, columns.label) is not None:
        return ()
    return _all_named(table, columns.label.split(",")) or ()


def find_texts(table: Table, columns: Columns) -> tuple[str, ...] | None:
    """Returns the names of the one or two text columns, or None."""
    if columns.text is not None:
        return _all_named(table, (columns.text,) if columns.text_pair is None else (columns.text, columns.text_pair))
    # Tags belong to listed words: a column with the whole text might be split into other words.
    tagged = (find_label(table, columns) or "").strip().lower() in TAG_COLUMNS
    ranked = (*WORD_COLUMNS, *TEXT_COLUMNS) if tagged else (*TEXT_COLUMNS, *WORD_COLUMNS)
    return next((existing for names in ranked if (existing := _all_named(table, names)) is not None), None)


def _all_named(table: Table, names: Sequence[str]) -> tuple[str, ...] | None:
    columns = tuple(named(table, name) for name in names)
    return None if None in columns else tuple(name for name in columns if name is not None)


def require_texts(table: Table, columns: Columns) -> tuple[str, ...]:
    """Returns the names of the text columns, or raises InvalidData with a list of the existing columns."""
    texts = find_texts(table, columns)
    if texts is None:
        raise InvalidData(_missing(table, columns, "text"))
    return texts


def texts_of_rows(table: Table, cells: Sequence[Sequence[Any]]) -> list[Any]:
    """Returns each row's text or pair from the text columns' cells; raises InvalidData with the rows without text."""
    rows, bad = list(zip(*cells, strict=True)), dict[str, list[int]]()
    for number, row in enumerate(rows):
        if why := text_fault(*row):
            bad.setdefault(why, []).append(number)
    if bad:
        raise InvalidData(describe_bad_rows(bad, table.where))
    return [row[0] if len(row) == 1 else row for row in rows]


def find_columns(table: Table, columns: Columns) -> tuple[tuple[str, ...], str]:
    """Returns the names of the text columns and of the label column, or raises InvalidData with the missing ones."""
    texts, label = find_texts(table, columns), find_label(table, columns)
    if texts is None or label is None:
        raise InvalidData(_missing(table, columns, *["text"] * (texts is None), *["label"] * (label is None)))
    return texts, label


def require_label(table: Table, columns: Columns) -> str:
    """Returns the name of the label column, or raises InvalidData with a list of the existing columns."""
    label = find_label(table, columns)
    if label is None:
        raise InvalidData(_missing(table, columns, "label"))
    return label


def _missing(table: Table, columns: Columns, *options: str) -> str:
    texts = [("text", columns.text or ""), ("text-pair", columns.text_pair or "")]
    names_of = {"text": texts, "label": [("label", name) for name in (columns.label or "").split(",")]}
    which, unsaid = list[str](), list[str]()
    for option in options:
        lacking = [(of, name.strip()) for of, name in names_of[option] if name and named(table, name) is None]
        which += [f"no column {printable(name)} for --{of}{suggestion(name, table)}" for of, name in lacking]
        unsaid += [] if lacking else [option]
    if unsaid:
        which.append(f"no {' and no '.join(unsaid)} column; say which with --{' and --'.join(unsaid)}")
    existing = ", ".join(printable(name, 40) for name in list(table)[:10])
    # Without a header the first data row becomes the names: such a name is long, or equals a cell below it.
    headless = any(len(name) > LONGEST_NAME or name in table[name] for name in table)
    hint = "; is the first line not a header?" if headless else ""
    return f"{table.origin}: {', '.join(which)} (the columns are {existing}){hint}"
