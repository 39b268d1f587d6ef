"""Reads rows of a Parquet file from any row on, without decoding earlier rows or holding more than a window."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet

from onebert_encoder.answering.scores import Array
from onebert_server.score.stream import WINDOW_BYTES, Chosen, Rows, checked, numbered
from onebert_store.errors import InvalidData
from onebert_store.tables.arrow import unpacked_bytes
from onebert_store.tables.file import Unpacking
from onebert_store.tables.sample import sample_of_schema
from onebert_store.tables.table import Table

# Rows decoded at a time, limited by bytes as well.
_READ_ROWS, _READ_BYTES = 4096, 2**22
_BUFFER_BYTES = 2**20


class ParquetRows:
    """The stream of a Parquet file; `size` is in bytes."""

    def __init__(self, file: pyarrow.NativeFile, name: str, size: int) -> None:
        self.row = 0
        self.notes: tuple[str, ...] = ()  # the file's schema leaves nothing to guess
        self._name, self._size, self._count = name, size, Unpacking(name)
        # Column chunks are read through a buffer; each may be as large as the file.
        self._file = pyarrow.parquet.ParquetFile(file, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        self._schema = self._file.schema_arrow
        groups = [self._file.metadata.row_group(i) for i in range(self._file.num_row_groups)]
        self._starts = np.cumsum([0, *(group.num_rows for group in groups)])
        row_bytes = sum(group.total_byte_size for group in groups) / max(int(self._starts[-1]), 1)
        self._read_rows = max(min(_READ_ROWS, int(_READ_BYTES / max(row_bytes, 1))), 1)
        self._batches: Any = None
        self._held: pyarrow.Table | None = None

    @property
    def share(self) -> float:
        return self.row / int(self._starts[-1]) if self._starts[-1] else 1.0

    def sample(self) -> Table:
        return sample_of_schema(self._schema, self._name)

    def choose(self, chosen: Chosen) -> None:
        self._chosen = chosen
        for name in chosen.ids:
            if name not in self._schema.names:
                raise InvalidData(f"{self._name} has no column {name}")
        for name in chosen.texts:
            if not _is_text(kind := self._type_of(name)):
                raise InvalidData(f"{self._name}: the column {name} holds {kind}, not texts")

    def skip(self, rows: int) -> None:
        self.row = min(self.row + rows, int(self._starts[-1]))
        self._batches = self._held = None

    def take(self, most: int) -> Rows:
        held = self._hold(most)
        columns = [_strings(held.slice(0, most), name) for name in self._chosen.texts]
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
            self._batches = self._batches_from(self.row, columns)
            # Same schema as the batches, in which a struct column may have only some of its fields.
            self._held = pyarrow.Table.from_batches([], self._file.read_row_groups([], columns).schema)
        while self._held.num_rows < rows and (batch := next(self._batches, None)) is not None:
            self._held = pyarrow.concat_tables([self._held, pyarrow.Table.from_batches([batch])])
        return self._held

    def _batches_from(self, row: int, columns: list[str]) -> Iterator[pyarrow.RecordBatch]:
        group = int(np.searchsorted(self._starts, row, side="right")) - 1
        left = row - int(self._starts[group])
        groups = list(range(group, self._file.num_row_groups))
        for batch in self._file.iter_batches(self._read_rows, groups, columns) if groups else ():
            self._count.add(unpacked_bytes(batch, self._name), self._size)
            if len(batch) > left:
                yield batch.slice(left)
            left = max(left - len(batch), 0)

    def _type_of(self, name: str) -> pyarrow.DataType:
        """The type of a column; `a.b` is field `b` of struct column `a`."""
        if name in self._schema.names:
            return self._schema.field(name).type
        column, *path = name.split(".")
        try:
            kind = self._schema.field(column).type
            for key in path:
                kind = kind.field(key).type
        except (KeyError, AttributeError, TypeError):
            raise InvalidData(f"{self._name} has no column {name}") from None
        return kind


def _is_text(kind: pyarrow.DataType) -> bool:
    types = pyarrow.types
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    return any(is_one(kind) for is_one in (types.is_string, types.is_large_string, types.is_string_view, types.is_null))


def _strings(table: pyarrow.Table, name: str) -> pyarrow.ChunkedArray:
    column, *path = [name] if name in table.column_names else name.split(".")
    cells = pc.struct_field(table[column], path) if path else table[column]
    return cells.cast(pyarrow.large_string())


def _bytes(column: pyarrow.ChunkedArray) -> Array:
    """[rows], the bytes of texts and binaries; other types are small and count as 0."""
    types = pyarrow.types
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
