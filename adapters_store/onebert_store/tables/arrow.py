"""Rows of Parquet and Arrow files, and the names of labels that Hugging Face's library leaves in them."""

from collections.abc import Iterator
from contextlib import ExitStack, suppress
from io import SEEK_END
from typing import Any

import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet

from onebert_store.tables.file import File, Unpacking
from onebert_store.tables.text.json_rows import parse_json

BAD_CELL = "a text is not valid UTF-8, or a time is in nanoseconds or out of range"
_BATCH_ROWS = 4096
_FILE_MARK = b"ARROW1"


def parquet_batches(file: File, opened: ExitStack) -> tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch]]:
    """The schema of a Parquet file and its rows, some at a time."""
    stream = opened.enter_context(file.open())
    size = stream.seek(0, SEEK_END)
    parquet = pyarrow.parquet.ParquetFile(stream, pre_buffer=False)
    return parquet.schema_arrow, _bounded(parquet.iter_batches(_BATCH_ROWS), size, Unpacking(file.name))


def _bounded(batches: Iterator[pyarrow.RecordBatch], size: int, count: Unpacking) -> Iterator[pyarrow.RecordBatch]:
    for batch in batches:
        count.add(unpacked_bytes(batch), size)
        yield batch


def unpacked_bytes(batch: pyarrow.RecordBatch) -> int:
    """Bytes of all cells, where a text that is held once stands in many of them, too."""
    total = 0
    for column in batch.columns:
        if pyarrow.types.is_dictionary(column.type) and pyarrow.types.is_string(column.type.value_type):
            total += pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0
        else:
            total += column.nbytes
    return total


def arrow_batches(file: File, opened: ExitStack) -> tuple[pyarrow.Schema, Iterator[pyarrow.RecordBatch]]:
    """The schema of an Arrow file, of either form, and its rows as it has them."""
    stream = opened.enter_context(file.open())
    head, size = stream.peek(len(_FILE_MARK)), stream.seek(0, SEEK_END)
    stream.seek(0)
    if head.startswith(_FILE_MARK):
        reader = opened.enter_context(pyarrow.ipc.open_file(stream))
        batches = (reader.get_batch(i) for i in range(reader.num_record_batches))
    else:
        reader = batches = opened.enter_context(pyarrow.ipc.open_stream(stream))
    return reader.schema, _bounded(batches, size, Unpacking(file.name))


def rows_of(batches: Iterator[pyarrow.RecordBatch]) -> Iterator[dict[str, Any] | None]:
    """Rows one by one; None is one with a cell that Python has nothing for, as a text that is not UTF-8."""
    for batch in batches:
        try:
            yield from batch.to_pylist()
        except (ValueError, OverflowError):
            # Each row alone, so that only those are lost that have such a cell.
            alone = (batch.slice(place, 1) for place in range(len(batch)))
            yield from rows_of(alone) if len(batch) > 1 else [None]


def label_names_in(schema: pyarrow.Schema) -> dict[str, tuple[str, ...]]:
    """The label names that a file has; empty where Hugging Face's library did not write it."""
    with suppress(KeyError, ValueError, TypeError, AttributeError):
        return label_names_of(parse_json((schema.metadata or {})[b"huggingface"].decode())["info"]["features"])
    return {}


def label_names_of(features: Any) -> dict[str, tuple[str, ...]]:
    """The label names, by label index, of every column for which a Hugging Face data set's features list names.

    Args:
        features: as decoded from JSON: column -> `{"names": […], "_type": "ClassLabel"}`, or a list of such.
    """
    found = {}
    for column, feature in features.items() if isinstance(features, dict) else ():
        inner = feature.get("feature", feature) if isinstance(feature, dict) else None
        names = inner.get("names") if isinstance(inner, dict) else None
        if isinstance(names, list) and names:
            found[str(column)] = tuple(map(str, names))
    return found
