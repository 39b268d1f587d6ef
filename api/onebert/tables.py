"""Turns data in memory into the form that files are read into, a `Source` of tables."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onebert_store.errors import InvalidData
from onebert_store.tables.hub import label_names_of
from onebert_store.tables.table import Table
from onebert_store.tables.tables import SPLITS, Source, joined_source

NAME = "data"


def source_of(data: Any) -> str | Source:
    """Turns what `onebert.train` takes as data into what `load_dataset` takes.

    Args:
        data: a path or `hf:…`, one table, or a mapping of split names to tables. A table is a DataFrame, a mapping of
            column names to cells, rows that are mappings, or rows that are (text, label) or (text, text_pair, label).

    Raises:
        InvalidData: the data is none of these, or names a split that does not exist.
    """
    if isinstance(data, str | Path):
        return str(data)
    if isinstance(data, Mapping) and "train" in data and (set(data) <= set(SPLITS) or _is_table(data["train"])):
        if unknown := [str(name) for name in data if name not in SPLITS]:
            raise InvalidData(f"{', '.join(unknown)}: no such split; there are {', '.join(SPLITS)}")
        return joined_source(NAME, {split: table_of(data[split], split) for split in SPLITS if split in data})
    return joined_source(NAME, {"train": table_of(data, NAME)}, single_file=True)


def table_of(data: Any, origin: str) -> Table:
    """One table; see `source_of`.

    Raises:
        InvalidData: the data is no table, or its columns are not of one length.
    """
    columns = _columns(data)
    if len({len(cells) for cells in columns.values()}) > 1:
        raise InvalidData(f"{origin}: the columns have different numbers of rows")
    if not any(columns.values()):
        raise InvalidData(f"{origin} has no rows")
    return Table(columns, origin, label_names=label_names_of(data))


def _is_table(data: Any) -> bool:
    """Whether a value is a table rather than one column of it."""
    try:
        _columns(data)
    except InvalidData:
        return False
    return True


def _columns(data: Any) -> dict[str, list[Any]]:
    """Cells by column name."""
    # Tables of pyarrow have `to_pydict`, data sets of Hugging Face `to_dict`, and both give plain lists. DataFrames of
    # pandas and polars have a `to_dict`, too, which gives other things, and no `column_names`.
    for convert in ("to_pydict", "to_dict"):
        if hasattr(data, "column_names") and hasattr(data, convert):
            return {str(name): _cells(cells) for name, cells in getattr(data, convert)().items()}
    if hasattr(data, "columns") and hasattr(data, "__getitem__"):
        if len(set(map(str, data.columns))) != len(data.columns):
            raise InvalidData("two columns have one name")
        return {str(name): _cells(data[name]) for name in data.columns}
    if isinstance(data, Mapping):
        return {str(name): _cells(cells) for name, cells in data.items()}
    rows = list(data) if isinstance(data, Sequence) and not isinstance(data, str | bytes) else []
    if rows and all(isinstance(row, Mapping) for row in rows):
        return {
            str(name): [row.get(name) for row in rows] for name in dict.fromkeys(name for row in rows for name in row)
        }
    lengths = {len(row) if isinstance(row, tuple | list) else 0 for row in rows}
    forms = {2: ("text", "label"), 3: ("text", "text_pair", "label")}
    if len(lengths) == 1 and (width := lengths.pop()) in forms:
        return dict(zip(forms[width], map(list, zip(*rows, strict=True)), strict=True))
    raise InvalidData(
        "data is a path, a DataFrame, a mapping of columns, a list of mappings, or a list of (text, label) pairs"
    )


def _cells(column: Any) -> list[Any]:
    """A column as a list of Python's own values; pandas' marks for missing cells become None."""
    if isinstance(column, str | bytes) or not hasattr(column, "__iter__"):
        raise InvalidData("a column is a list of cells")
    return [_cell(cell) for cell in column]


def _cell(cell: Any) -> Any:
    # Arrays and numbers of numpy have the one method, lists in a column of polars the other.
    for convert in ("tolist", "to_list"):
        if hasattr(cell, convert):
            cell = getattr(cell, convert)()
            break
    # A number of numpy may be what pandas marks a missing cell with, too.
    return None if _is_missing(cell) else cell


def _is_missing(cell: Any) -> bool:
    # pandas.NA and NaT are recognized by name, since this package does not import pandas.
    return (isinstance(cell, float) and math.isnan(cell)) or type(cell).__name__ in ("NAType", "NaTType")
