"""Reads rows of Parquet and Arrow files, and the label names that Hugging Face's library stores in them."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from io import SEEK_END
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet
from pyarrow import types

from onebert_store.errors import InvalidData
from onebert_store.file.strict_json import printable
from onebert_store.tables.file import File, Unpacking
from onebert_store.tables.text.json_rows import parse_json

BAD_CELL = "a text is not valid UTF-8, or a time is in nanoseconds or out of range"
# Rows decoded at a time, limited by bytes as well.
_BATCH_ROWS, _BATCH_BYTES = 4096, 2**22
_BUFFER_BYTES = 2**20
_FILE_MARK = b"ARROW1"


class Parquet:
    """A Parquet file: its schema, and its rows in batches from any row on."""

    def __init__(self, file: File, opened: ExitStack) -> None:
        stream = opened.enter_context(file.open())
        self._name, self._size = file.name, stream.seek(0, SEEK_END)
        # Column chunks are read through a buffer; each may be as large as the file.
        self._file = pyarrow.parquet.ParquetFile(stream, buffer_size=_BUFFER_BYTES, pre_buffer=False)
        self.schema = self._file.schema_arrow
        groups = [self._file.metadata.row_group(i) for i in range(self._file.num_row_groups)]
        self._starts = np.cumsum([0, *(group.num_rows for group in groups)])
        self.rows = int(self._starts[-1])
        row_bytes = sum(group.total_byte_size for group in groups) / max(self.rows, 1)
        self._batch_rows = max(min(_BATCH_ROWS, int(_BATCH_BYTES / max(row_bytes, 1))), 1)

    def schema_of(self, columns: list[str]) -> pyarrow.Schema:
        """Returns the schema of some columns' batches, in which a struct may have only some of its fields."""
        return self._file.read_row_groups([], columns).schema

    def batches(self, start: int = 0, columns: list[str] | None = None) -> Iterator[pyarrow.RecordBatch]:
        """Yields the rows from `start` on; row groups before it are not decoded."""
        first = int(np.searchsorted(self._starts, start, side="right")) - 1
        skipped = start - int(self._starts[first])
        groups = list(range(first, self._file.num_row_groups))
        batches = self._file.iter_batches(self._batch_rows, groups, columns) if groups else iter(())
        for batch in _bounded(batches, self._size, self._name):
            if len(batch) > skipped:
                yield batch.slice(skipped)
            skipped = max(skipped - len(batch), 0)


def parquet_batches(file: File, opened: ExitStack) -> tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch]]:
    """Returns a Parquet file's schema and its rows in batches."""
    parquet = Parquet(file, opened)
    return parquet.schema, parquet.batches()


def _bounded(batches: Iterator[pyarrow.RecordBatch], size: int, name: str) -> Iterator[pyarrow.RecordBatch]:
    count = Unpacking(name)
    for batch in batches:
        count.add(_unpacked_bytes(batch, name), size)
        yield batch


def _unpacked_bytes(batch: pyarrow.RecordBatch, name: str) -> int:
    """Counts the bytes of a batch's cells; a value that several cells share counts once per cell."""
    total = 0
    for column, cells in zip(batch.schema.names, batch.columns, strict=True):
        if (size := _bytes(cells)) is None:
            raise InvalidData(f"{name}: the column {printable(column, 40)} is of type {cells.type}, which is not read")
        total += size
    return total


def _bytes(cells: pyarrow.Array) -> int | None:
    kind = cells.type
    if not _shares(kind):
        return int(cells.nbytes)
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        return _bytes(cells.flatten())
    if types.is_struct(kind):
        inside = [_bytes(part) for part in cells.flatten()]
        return None if None in inside else sum(filter(None, inside))
    lengths = _lengths(cells.dictionary if types.is_dictionary(kind) else cells)
    if lengths is not None and types.is_dictionary(kind):
        lengths = lengths.take(cells.indices)
    return None if lengths is None else int(pc.sum(lengths).as_py() or 0)


def _shares(kind: pyarrow.DataType) -> bool:
    """True if cells of this type, or cells nested in them, may share their values."""
    if types.is_dictionary(kind):
        return not (types.is_primitive(kind.value_type) or types.is_decimal(kind.value_type))
    inside = any(_shares(kind.field(place).type) for place in range(kind.num_fields))
    return inside or types.is_run_end_encoded(kind) or "_view" in str(kind).partition("<")[0]


def _lengths(cells: pyarrow.Array) -> pyarrow.Array | None:
    if types.is_string_view(cells.type) or types.is_binary_view(cells.type):
        # A view is 16 bytes; the first four are its length.
        views = np.frombuffer(cells.buffers()[1], dtype="<i4")[4 * cells.offset :: 4][: len(cells)]
        return pc.if_else(cells.is_valid(), pyarrow.array(views, pyarrow.int64()), 0)
    try:
        return pc.binary_length(cells)
    except pyarrow.ArrowNotImplementedError:
        return None


def arrow_batches(file: File, opened: ExitStack) -> tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch]]:
    """Returns an Arrow file's schema and its batches as stored; reads both the file and the stream format."""
    stream = opened.enter_context(file.open())
    head, size = stream.peek(len(_FILE_MARK)), stream.seek(0, SEEK_END)
    stream.seek(0)
    if head.startswith(_FILE_MARK):
        reader = opened.enter_context(pyarrow.ipc.open_file(stream))
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        reader = batches = opened.enter_context(pyarrow.ipc.open_stream(stream))
    return reader.schema, _bounded(batches, size, file.name)


def rows_of(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[dict[str, Any] | None]:
    """Yields rows one by one; None for a row with a cell that Python cannot hold, such as a text that is not UTF-8."""
    for batch in batches:
        binary = binary_columns(batch.schema)
        try:
            for row in batch.to_pylist():
                yield row | {name: decoded(row[name]) for name in binary} if binary else row
        except (ValueError, OverflowError):
            # Convert rows one by one, so that only rows with such a cell are lost.
            alone = (batch.slice(place, 1) for place in range(len(batch)))
            yield from rows_of(alone) if len(batch) > 1 else [None]


def binary_columns(schema: pyarrow.Schema) -> list[str]:
    """Returns the columns of bytes, at any depth: databases write texts so."""
    return [field.name for field in schema if "binary" in str(field.type)]


def decoded(cell: Any) -> Any:
    """Decodes bytes in a cell that are UTF-8, at any depth, without the zeros that fill a fixed width."""
    if isinstance(cell, bytes):
        with suppress(UnicodeDecodeError):
            return cell.rstrip(b"\0").decode()
    if isinstance(cell, list):
        return [decoded(item) for item in cell]
    return {name: decoded(item) for name, item in cell.items()} if isinstance(cell, dict) else cell


def binary_note(schema: pyarrow.Schema, name: str) -> str:
    """Tells the user which columns are decoded; empty if none is."""
    columns = ", ".join(printable(column, 40) for column in binary_columns(schema))
    return columns and f"{name}: cells of bytes are read as texts where they are UTF-8: {columns}"


def label_names_in(schema: pyarrow.Schema) -> dict[str, tuple[str, ...]]:
    """Returns the label names that a file stores; empty if Hugging Face's library did not write it."""
    with suppress(KeyError, ValueError, TypeError, AttributeError):
        return label_names_of(parse_json((schema.metadata or {})[b"huggingface"].decode())["info"]["features"])
    return {}


def label_names_of(features: Any) -> dict[str, tuple[str, ...]]:
    """Returns label names, by label index, for each column whose Hugging Face `features` (decoded JSON) list names."""
    label_names = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else None
        names = inner.get("names") if isinstance(inner, dict) else None
        if isinstance(names, list) and names:
            label_names[str(column)] = tuple(map(str, names))
    return label_names
