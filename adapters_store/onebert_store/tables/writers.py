"""Writes rows of cells to a file, row by row: CSV, JSON lines or Parquet."""

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from onebert_store.disk import written_whole
from onebert_store.errors import InvalidData, InvalidSettings
from onebert_store.tables.text.unicode import escaped

_ROWS = 4096  # rows per row group
_ENCODE = json.JSONEncoder(ensure_ascii=False, allow_nan=False, default=str).encode


class Writer(Protocol):
    """Takes rows in order; constructed with the file, its columns and their types."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Writes a row, or buffers it for the next write."""

    def end(self) -> None:
        """Writes buffered rows; leaves the file open."""


class CsvWriter:
    """Writes CSV, with lists and objects as JSON in their cells.

    Cells that start with = or @ are written unchanged, although a spreadsheet may take them for formulas: an escape
    would change the data for every other program.
    """

    def __init__(self, file: BinaryIO, columns: Sequence[str], types: Mapping[str, Any]) -> None:
        self._columns = columns
        # JSON may contain half a surrogate pair, which UTF-8 cannot encode; see `escaped`.
        self._text = TextIOWrapper(file, encoding="utf-8", errors="backslashreplace", newline="", write_through=True)
        self._writer = csv.writer(self._text, lineterminator="\r\n")
        self._writer.writerow(columns)

    def add(self, row: Mapping[str, Any]) -> None:
        self._writer.writerow([_cell(row.get(name)) for name in self._columns])

    def end(self) -> None:
        self._text.detach()


class JsonWriter:
    """Writes JSON lines; cells that JSON lacks, such as dates, become texts."""

    def __init__(self, file: BinaryIO, columns: Sequence[str], types: Mapping[str, Any]) -> None:
        self._file, self._columns = file, columns

    def add(self, row: Mapping[str, Any]) -> None:
        line = _json({name: row.get(name) for name in self._columns})
        self._file.write(escaped(line).encode() + b"\n")

    def end(self) -> None: ...


class ParquetWriter:
    """Writes Parquet with the input's column types; columns of a text file are texts."""

    def __init__(self, file: BinaryIO, columns: Sequence[str], types: Mapping[str, Any]) -> None:
        import pyarrow  # noqa: PLC0415 - slow to import, and few files need it
        import pyarrow.parquet  # noqa: PLC0415

        self._schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in columns])
        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._rows: list[Mapping[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) == _ROWS:
            self._write()

    def end(self) -> None:
        if self._rows:
            self._write()
        self._writer.close()

    def _write(self) -> None:
        import pyarrow  # noqa: PLC0415

        columns = []
        for column in self._schema:
            cells = [row.get(column.name) for row in self._rows]
            if pyarrow.types.is_string(column.type):
                cells = [None if cell is None else escaped(_cell(cell)) for cell in cells]
            try:
                columns.append(pyarrow.array(cells, column.type))
            except (pyarrow.ArrowException, ValueError, TypeError):
                raise InvalidData(f"the column {column.name[:40]} cannot be written to Parquet; write .jsonl") from None
        self._writer.write_table(pyarrow.Table.from_arrays(columns, schema=self._schema))
        self._rows = []


WRITERS: Mapping[str, Callable[[BinaryIO, Sequence[str], Mapping[str, Any]], Writer]] = {
    ".csv": CsvWriter,
    ".jsonl": JsonWriter,
    ".parquet": ParquetWriter,
}


def check_ending(option: str, path: Path) -> None:
    """Raises InvalidSettings if no writer is for the ending of an option's file."""
    if path.suffix.lower() not in WRITERS:
        raise InvalidSettings(f"{option} ends in one of {', '.join(WRITERS)}")


def write_table(path: Path, columns: Mapping[str, Sequence[Any]]) -> None:
    """Writes a table atomically in the form of the ending, one of `WRITERS`; raises InvalidData, StorageFull."""
    is_parquet = path.suffix.lower() == ".parquet"
    types = {name: _type(cells) for name, cells in columns.items()} if is_parquet else {}
    with written_whole(path) as file:
        writer = WRITERS[path.suffix.lower()](file, list(columns), types)
        for cells in zip(*columns.values(), strict=True):
            writer.add(dict(zip(columns, cells, strict=True)))
        writer.end()


def _type(cells: Sequence[Any]) -> Any:
    import pyarrow  # noqa: PLC0415

    try:
        kind = pyarrow.array(cells).type
    except (pyarrow.ArrowException, ValueError, TypeError, OverflowError):
        return pyarrow.string()
    if pyarrow.types.is_null(kind):
        return pyarrow.string()
    # All lists are empty: for example, no text has a label.
    return pyarrow.list_(pyarrow.string()) if kind == pyarrow.list_(pyarrow.null()) else kind


def _cell(cell: Any) -> str:
    if cell is None:
        return ""
    return _json(cell) if isinstance(cell, dict | list) else str(cell)


def _json(value: Any) -> str:
    try:
        return _ENCODE(value)
    except ValueError:
        return _ENCODE(_finite(value))


def _finite(value: Any) -> Any:
    """Replaces numbers that JSON lacks by null, at any depth; only runs after encoding has failed."""
    match value:
        case float():
            return value if math.isfinite(value) else None
        case list():
            return [_finite(item) for item in value]
        case dict():
            return {name: _finite(item) for name, item in value.items()}
        case _:
            return value
