"""Which column of a table holds what: by the names that data sets use, or as the caller says."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onebert_store.errors import InvalidData
from onebert_store.file.strict_json import shown
from onebert_store.meant import meant
from onebert_store.tables.places import said_of_rows
from onebert_store.tables.table import Table
from onebert_store.tables.text.unicode import text_fault

# Pairs come before single texts, and the first entry whose columns are all there is taken.
TEXT_COLUMNS: Sequence[tuple[str, ...]] = (
    *(("text", "text_pair"), ("sentence1", "sentence2"), ("question1", "question2"), ("text1", "text2")),
    *(("premise", "hypothesis"), ("question", "sentence"), ("query", "passage"), ("question", "context")),
    *((name,) for name in ("text", "sentence", "sentence1", "question", "utterance", "premise", "query")),
    *((name,) for name in ("content", "message", "review", "title")),
)
WORD_COLUMNS: Sequence[tuple[str, ...]] = (("tokens",), ("words",))
TAG_COLUMNS = ("ner_tags", "tags", "pos_tags")
ANSWER_COLUMN = "answers"
LONGEST_NAME = 40  # characters that a column's name has at most, to tell one from a text
LABEL_COLUMNS = ("label", "labels", "target", "score", "class", "category", "intent", *TAG_COLUMNS, ANSWER_COLUMN)


@dataclass(frozen=True)
class Columns:
    """Which columns hold what; where it is None, the column is found by the names that data sets use.

    Attributes:
        text: a name, or `a.b` for the field `b` of the objects in a column `a`.
        text_pair: the second text of a pair.
        label: a name, or the names of several columns joined by commas: one for each label of a multi_label task, with
            0 or 1 in its cells.
        label_separator: stands between the names in a cell of labels; None is found.
    """

    text: str | None = None
    text_pair: str | None = None
    label: str | None = None
    label_separator: str | None = None

    def __post_init__(self) -> None:
        if self.text_pair is not None and self.text is None:
            raise InvalidData("a column for text_pair needs one for text, too")


def named(table: Table, name: str) -> str | None:
    """The column that a person means by a name: of that name, else the one that differs in case or outer spaces."""
    if name in table:
        return name
    alike = [column for column in table if column.strip().lower() == name.strip().lower()]
    return alike[0] if len(alike) == 1 else None


def find_label(table: Table, columns: Columns) -> str | None:
    """Name of the column that holds the labels; None where there is no such column."""
    if columns.label is not None:
        return named(table, columns.label)
    return next((found for name in LABEL_COLUMNS if (found := named(table, name)) is not None), None)


def find_label_columns(table: Table, columns: Columns) -> tuple[str, ...]:
    """Names of the columns of a task with a column for each label; empty where one column holds the labels."""
    if columns.label is None or "," not in columns.label or named(table, columns.label) is not None:
        return ()
    found = [named(table, name) for name in columns.label.split(",")]
    return tuple(name for name in found if name is not None) if None not in found else ()


def find_texts(table: Table, columns: Columns) -> tuple[str, ...] | None:
    """Names of the one or two columns that hold the text; None where there are no such columns."""
    if columns.text is not None:
        return _all_named(table, (columns.text,) if columns.text_pair is None else (columns.text, columns.text_pair))
    # Tags belong to the listed words: a column with the whole text might be split into other words.
    tagged = (find_label(table, columns) or "").strip().lower() in TAG_COLUMNS
    ranked = (*WORD_COLUMNS, *TEXT_COLUMNS) if tagged else (*TEXT_COLUMNS, *WORD_COLUMNS)
    return next((found for names in ranked if (found := _all_named(table, names)) is not None), None)


def _all_named(table: Table, names: Sequence[str]) -> tuple[str, ...] | None:
    found = tuple(named(table, name) for name in names)
    return None if None in found else tuple(name for name in found if name is not None)


def require_texts(table: Table, columns: Columns) -> tuple[str, ...]:
    """Names of the text columns.

    Raises:
        InvalidData: there are none; the message lists the columns that are there.
    """
    texts = find_texts(table, columns)
    if texts is None:
        raise InvalidData(_missing(table, columns, "text"))
    return texts


def texts_of_rows(table: Table, cells: Sequence[Sequence[Any]]) -> list[Any]:
    """The text or pair of each row.

    Args:
        table: the rows, for messages.
        cells: those of each text column.

    Raises:
        InvalidData: rows have no text; the message names them.
    """
    rows, bad = list(zip(*cells, strict=True)), dict[str, list[int]]()
    for number, row in enumerate(rows):
        if why := text_fault(*row):
            bad.setdefault(why, []).append(number)
    if bad:
        raise InvalidData(said_of_rows(bad, table.where))
    return [row[0] if len(row) == 1 else row for row in rows]


def find_columns(table: Table, columns: Columns) -> tuple[tuple[str, ...], str]:
    """Names of the text columns and of the label column.

    Raises:
        InvalidData: columns are missing; the message names all of them, and lists the columns that are there.
    """
    texts, label = find_texts(table, columns), find_label(table, columns)
    if texts is None or label is None:
        raise InvalidData(_missing(table, columns, *["text"] * (texts is None), *["label"] * (label is None)))
    return texts, label


def require_label(table: Table, columns: Columns) -> str:
    """Name of the label column.

    Raises:
        InvalidData: there is none; the message lists the columns that are there.
    """
    label = find_label(table, columns)
    if label is None:
        raise InvalidData(_missing(table, columns, "label"))
    return label


def _missing(table: Table, columns: Columns, *options: str) -> str:
    """What is missing for each of the options `text` and `label`."""
    asked = {"text": (columns.text, columns.text_pair), "label": (columns.label or "").split(",")}
    which, unsaid = list[str](), list[str]()
    for option in options:
        lacking = [name.strip() for name in asked[option] if name and named(table, name) is None]
        which += [f"no column {shown(name)}{meant(name, table)}" for name in lacking]
        unsaid += [] if lacking else [option]
    if unsaid:
        which.append(f"no {' and no '.join(unsaid)} column; say which with --{' and --'.join(unsaid)}")
    there = ", ".join(shown(name, 40) for name in list(table)[:10])
    # Without a header the first row of data is taken for names: such a name is long, or equals a cell below it.
    headless = any(len(name) > LONGEST_NAME or name in table[name] for name in table)
    hint = "; is the first line not a header?" if headless else ""
    return f"{table.origin}: {', '.join(which)} (the columns are {there}){hint}"
