"""What a file of rows is to a job: columns to choose from, then rows in order, a window at a time."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import pyarrow

from onebert_encoder.text.tokens import Text
from onebert_server.limits import MAX_TEXT
from onebert_store.errors import InvalidData
from onebert_store.file.strict_json import shown
from onebert_store.meant import meant
from onebert_store.tables.columns import Columns, named, require_texts
from onebert_store.tables.table import Table
from onebert_store.tables.text.unicode import HALF, is_blank, is_unicode

# A window ends behind the row with which its texts, and what is kept of its rows, are so many bytes (of a text file,
# characters): whatever the rows are, memory is bounded.
WINDOW_BYTES = 2**22
# The column that is kept where the input has none to keep: the row's number in its file, from 1.
ROW = "row"


@dataclass(frozen=True)
class Chosen:
    """Names of the columns that are read: of the text, or of the texts of a pair, and of those that are kept."""

    texts: tuple[str, ...]
    ids: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Rows:
    """Rows side by side of one file.

    Attributes:
        ids: the columns that are kept.
        texts: of each row its text or pair; None where the row has none that can be scored.
        errors: of such a row, why; None for the others.
    """

    ids: pyarrow.Table
    texts: list[Text | None]
    errors: list[str | None]


class Stream(Protocol):
    """The rows of one file, in order.

    Attributes:
        row: rows that were taken or skipped.
        notes: what a user should know of how the file is read.
    """

    row: int
    notes: tuple[str, ...]

    @property
    def share(self) -> float:
        """How much of the file that is, from 0 to 1; of a text file by its bytes."""

    def sample(self) -> Table:
        """A table with the columns of the file, for finding them; its cells are some that the file could have."""

    def choose(self, chosen: Chosen) -> None:
        """Says what to read, before the first row is taken or skipped.

        Raises:
            InvalidData: there is no such column, or the text's holds something else.
        """

    def skip(self, rows: int) -> None:
        """Passes over so many rows, or those that are left."""

    def take(self, most: int) -> Rows:
        """The next rows: `most`, or as many as there are, or fewer where their texts are long; none at the end."""


def choose_columns(stream: Stream, columns: Columns, ids: Sequence[str], origin: str) -> Chosen:
    """The columns of the texts and those that are kept, as the caller says or by the names that data sets use.

    Raises:
        InvalidData: there is no such column.
    """
    sample = stream.sample()
    texts = require_texts(sample, columns)
    kept = {name: named(sample, name) for name in ids or ("id",)}
    if lacking := [name for name, found in kept.items() if ids and found is None]:
        there = ", ".join(shown(name, 40) for name in list(sample)[:10])
        said = f"{shown(lacking[0])}{meant(lacking[0], sample)}"
        raise InvalidData(f"{origin} has no column {said} (the columns are {there})")
    return Chosen(texts, tuple(dict.fromkeys(found for found in kept.values() if found is not None)))


def checked(cells: Sequence[Any]) -> tuple[Text | None, str | None]:
    """The text or pair in the cells of a row, or why there is none."""
    for cell, name in zip(cells, ("text", "second text"), strict=False):
        if why := _refused(cell):
            return None, f"the {name} {why}"
    return (cells[0] if len(cells) == 1 else (cells[0], cells[1])), None


def _refused(cell: Any) -> str | None:
    if cell is None:
        return "is missing"
    if not isinstance(cell, str):
        return "is not UTF-8" if isinstance(cell, bytes) else "is not a text"
    if is_blank(cell):
        return "is blank"
    if len(cell) > MAX_TEXT:
        return f"is longer than {MAX_TEXT} characters"
    return None if is_unicode(cell) else f"has {HALF}"


def numbered(first: int, rows: int) -> pyarrow.Table:
    """The numbers of rows as the column that is kept; `first` counts from 0."""
    return pyarrow.table({ROW: np.arange(first + 1, first + 1 + rows, dtype=np.int64)})
