"""Reads rows of Parquet and Arrow files, and the label names that Hugging Face's library stores in them."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet

from onebert_store.file.strict_json import printable
from onebert_store.tables.file import File
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
        for batch in batches:
            if len(batch) > skipped:
                yield batch.slice(skipped)
            skipped = max(skipped - len(batch), 0)


def parquet_batches(file: File, opened: ExitStack) -> tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch]]:
    """Returns a Parquet file's schema and its rows in batches."""
    parquet = Parquet(file, opened)
    return parquet.schema, parquet.batches()


def arrow_batches(file: File, opened: ExitStack) -> tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch]]:
    """Returns an Arrow file's schema and its batches as stored; reads both the file and the stream format."""
    stream = opened.enter_context(file.open())
    if stream.peek(len(_FILE_MARK)).startswith(_FILE_MARK):
        reader = opened.enter_context(pyarrow.ipc.open_file(stream))
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        reader = batches = opened.enter_context(pyarrow.ipc.open_stream(stream))
    return reader.schema, batches


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
