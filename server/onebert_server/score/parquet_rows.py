"""Reads rows of a Parquet file from any row on, without holding more than a window."""

from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pc
from pyarrow import types

from onebert_encoder.answering.scores import Array
from onebert_server.score.stream import WINDOW_BYTES, Chosen, Rows, checked, numbered
from onebert_store.errors import InvalidData
from onebert_store.tables.arrow import Parquet
from onebert_store.tables.sample import sample_of_schema
from onebert_store.tables.table import Table


class ParquetRows:
    """The stream of a Parquet file."""

    def __init__(self, file: Parquet, name: str) -> None:
        self.row = 0
        self.notes: tuple[str, ...] = ()  # the file's schema leaves nothing to guess
        self._file, self._name = file, name
        self._batches: Any = None
        self._held: pyarrow.Table | None = None

    @property
    def share(self) -> float:
        return self.row / self._file.rows if self._file.rows else 1.0

    def sample(self) -> Table:
        return sample_of_schema(self._file.schema, self._name)

    def choose(self, chosen: Chosen) -> None:
        self._chosen = chosen
        empty = self._file.schema.empty_table()
        for name in chosen.ids:
            if name not in empty.column_names:
                raise InvalidData(f"{self._name} has no column {name}")
        for name in chosen.texts:
            try:
                kind = _column(empty, name).type
            except (KeyError, pyarrow.ArrowException):
                raise InvalidData(f"{self._name} has no column {name}") from None
            if not _is_text(kind):
                raise InvalidData(f"{self._name}: the column {name} holds {kind}, not texts")

    def skip(self, rows: int) -> None:
        self.row = min(self.row + rows, self._file.rows)
        self._held = None

    def take(self, most: int) -> Rows:
        held = self._hold(most)
        columns = [_column(held, name).slice(0, most).cast(pyarrow.large_string()) for name in self._chosen.texts]
        sizes = sum(map(_bytes, [*columns, *held.slice(0, most).select(self._chosen.ids).columns]))
        # Includes the row that reaches the limit.
        rows = min(most, held.num_rows, 1 + int(np.searchsorted(np.cumsum(sizes), WINDOW_BYTES)))
        self._held = held.slice(rows)
        first, self.row = self.row, self.row + rows
        read = [checked(cells) for cells in zip(*(_cells(column.slice(0, rows)) for column in columns), strict=True)]
        kept = held.slice(0, rows).select(self._chosen.ids).combine_chunks()
        ids = kept if self._chosen.ids else numbered(first, rows)
        return Rows(ids, [text for text, _ in read], [error for _, error in read])

    def _hold(self, rows: int) -> pyarrow.Table:
        """Holds the next `rows` rows, across row groups: a window must not depend on the file's row groups."""
        if self._held is None:
            columns = [*dict.fromkeys((*self._chosen.texts, *self._chosen.ids))]
            self._batches = self._file.batches(self.row, columns)
            self._held = self._file.schema_of(columns).empty_table()
        while self._held.num_rows < rows and (batch := next(self._batches, None)) is not None:
            self._held = pyarrow.concat_tables([self._held, pyarrow.Table.from_batches([batch])])
        return self._held


def _column(table: pyarrow.Table, name: str) -> pyarrow.ChunkedArray:
    """A column; `a.b` is field `b` of struct column `a`."""
    column, *path = [name] if name in table.column_names else name.split(".")
    return pc.struct_field(table[column], path) if path else table[column]


def _is_text(kind: pyarrow.DataType) -> bool:
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return any(is_one(kind) for is_one in (types.is_string, types.is_large_string, types.is_string_view, types.is_null))


def _bytes(column: pyarrow.ChunkedArray) -> Array:
    """[rows], the bytes of texts and binaries; other types are small and count as 0."""
    large = (types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
    if not any(is_one(column.type) for is_one in large):
        return np.zeros(len(column), dtype=np.int64)
    return np.asarray(pc.fill_null(pc.binary_length(column), 0), dtype=np.int64)


def _cells(column: pyarrow.ChunkedArray) -> list[Any]:
    """Texts; cells that are not UTF-8 stay bytes, since the writer may not have checked them."""
    try:
        cells: list[Any] = column.to_pylist()
    except UnicodeDecodeError:
        cells = [cell if cell is None else _decoded(cell) for cell in column.cast(pyarrow.large_binary()).to_pylist()]
    return cells


def _decoded(cell: bytes) -> str | bytes:
    try:
        return cell.decode()
    except UnicodeDecodeError:
        return cell
