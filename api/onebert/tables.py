"""Converts data in memory to a `Source` of tables, the form that files are read into."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onebert_store.errors import InvalidData
from onebert_store.tables.binary.arrow import decoded
from onebert_store.tables.hub import label_names_of
from onebert_store.tables.table import Table
from onebert_store.tables.tables import SPLITS, Source, joined_source

NAME = "data"


def source_of(data: Any) -> str | Source:
    """Converts the `data` argument of `onebert.train` to an argument of `load_dataset`.

    A table is a DataFrame, a mapping of column names to cells, rows that are mappings, or rows that are (text, label)
    or (text, text_pair, label). `data` is a path or `hf:…`, one table, or a mapping of split names to tables.

    Raises:
        InvalidData: the data has another form, or names a split that does not exist.
    """
    if isinstance(data, str | Path):
        return str(data)
    if isinstance(data, Mapping) and "train" in data and (set(data) <= set(SPLITS) or _is_table(data["train"])):
        if unknown := [str(name) for name in data if name not in SPLITS]:
            raise InvalidData(f"{', '.join(unknown)}: no such split; there are {', '.join(SPLITS)}")
        return joined_source(NAME, {split: table_of(data[split], split) for split in SPLITS if split in data})
    return joined_source(NAME, {"train": table_of(data, NAME)}, single_file=True)


def table_of(data: Any, origin: str) -> Table:
    """One table; raises InvalidData if the data has no table's form, or columns of different lengths."""
    columns = decoded(_columns(data))
    if len({len(cells) for cells in columns.values()}) > 1:
        raise InvalidData(f"{origin}: the columns have different numbers of rows")
    if not any(columns.values()):
        raise InvalidData(f"{origin} has no rows")
    return Table(columns, origin, label_names=label_names_of(data))


def _is_table(data: Any) -> bool:
    try:
        _columns(data)
    except InvalidData:
        return False
    return True


def _columns(data: Any) -> dict[str, list[Any]]:
    # pyarrow's tables have `to_pydict`, Hugging Face's data sets `to_dict`; both return plain lists. DataFrames of
    # pandas and polars have another `to_dict`, and no `column_names`.
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
    """A column as a list of plain Python values; pandas' markers of missing cells become None."""
    if isinstance(column, str | bytes) or not hasattr(column, "__iter__"):
        raise InvalidData("a column is a list of cells")
    return [_cell(cell) for cell in column]


def _cell(cell: Any) -> Any:
    # numpy's arrays and numbers have `tolist`, lists in a polars column `to_list`.
    for convert in ("tolist", "to_list"):
        if hasattr(cell, convert):
            cell = getattr(cell, convert)()
            break
    # A numpy number may also be pandas' marker of a missing cell.
    return None if _is_missing(cell) else cell


def _is_missing(cell: Any) -> bool:
    # pandas.NA and NaT are recognized by name, since this package does not import pandas.
    return (isinstance(cell, float) and math.isnan(cell)) or type(cell).__name__ in ("NAType", "NaTType")
