"""The columns and rows of an input file, and the rules for a text."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

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

# A window ends with the row at which its texts and kept cells reach this many bytes (characters, in text files); this
# bounds memory.
WINDOW_BYTES = 2**22
# Kept if the input has no column to keep: the row's number in its file, from 1.
ROW = "row"


@dataclass(frozen=True)
class Chosen:
    """Names of the columns of the text (or of a pair's two texts), and of the columns to keep."""

    texts: tuple[str, ...]
    ids: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Rows:
    """Consecutive rows of one file: kept columns, and by row either a text (or pair) or an error."""

    ids: pyarrow.Table
    texts: list[Text | None]
    errors: list[str | None]


def choose_columns(sample: Table, columns: Columns, ids: Sequence[str], origin: str) -> Chosen:
    """The text columns and the kept columns, as given or found by the usual names; InvalidData for a missing column."""
    texts = require_texts(sample, columns)
    kept = {name: named(sample, name) for name in ids or ("id",)}
    if lacking := [name for name, found in kept.items() if ids and found is None]:
        there = ", ".join(shown(name, 40) for name in list(sample)[:10])
        said = f"{shown(lacking[0])}{meant(lacking[0], sample)}"
        raise InvalidData(f"{origin} has no column {said} (the columns are {there})")
    return Chosen(texts, tuple(dict.fromkeys(found for found in kept.values() if found is not None)))


def checked(cells: Sequence[Any]) -> tuple[Text | None, str | None]:
    """The text or pair in a row's cells, or the reason why the row cannot be scored."""
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
    """Row numbers from 1 as a column; `first` counts from 0."""
    return pyarrow.table({ROW: np.arange(first + 1, first + 1 + rows, dtype=np.int64)})
