"""Rows of Parquet and Arrow files, and the names of labels that Hugging Face's library leaves in them."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, suppress
from io import SEEK_END
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pc
import pyarrow.parquet
from pyarrow import types

from onebert_store.errors import InvalidData
from onebert_store.file.strict_json import shown
from onebert_store.tables.file import File, Unpacking
from onebert_store.tables.text.json_rows import parse_json

BAD_CELL = "a text is not valid UTF-8, or a time is in nanoseconds or out of range"
_BATCH_ROWS = 4096
_FILE_MARK = b"ARROW1"

_VIEWS = (types.is_string_view, types.is_binary_view)
_TEXTS = (*_VIEWS, types.is_string, types.is_large_string, types.is_binary, types.is_large_binary)
# Besides dictionaries.
_SHARED = (*_VIEWS, types.is_list_view, types.is_large_list_view, types.is_run_end_encoded)


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
    """Bytes of all cells, where a text that is held once stands in many of them, too.

    Raises:
        InvalidData: a column has a type in which one value of any size may stand in many cells.
    """
    return sum(map(_unpacked, batch.columns))


def _unpacked(cells: pyarrow.Array) -> int:
    kind = cells.type
    if not _repeats(kind):
        return int(cells.nbytes)
    if _is(kind, _TEXTS) or (types.is_dictionary(kind) and _is(kind.value_type, _TEXTS)):
        return pc.sum(_lengths(cells)).as_py() or 0
    if types.is_struct(kind):
        return sum(map(_unpacked, cells.flatten()))
    if types.is_list(kind) or types.is_large_list(kind):
        return 8 * len(cells) + _unpacked(cells.flatten())
    raise InvalidData(f"a column has the type {shown(str(kind), 60)}; save it with plain values")


def _is(kind: pyarrow.DataType, those: Iterable[Callable[[pyarrow.DataType], bool]]) -> bool:
    return any(is_one(kind) for is_one in those)


def _repeats(kind: pyarrow.DataType) -> bool:
    """Whether a value of any size may be held once and stand in many cells."""
    if types.is_dictionary(kind):
        value = kind.value_type
        return _is(value, (*_TEXTS, types.is_dictionary)) or value.num_fields > 0
    return _is(kind, _SHARED) or any(_repeats(kind.field(index).type) for index in range(kind.num_fields))


def _lengths(texts: pyarrow.Array) -> pyarrow.Array:
    """Bytes of each text."""
    if types.is_dictionary(texts.type):
        return _lengths(texts.dictionary).take(texts.indices)
    if not _is(texts.type, _VIEWS):
        return pc.binary_length(texts)
    # A view is 16 bytes, the first four its text's length.
    lengths = np.frombuffer(texts.buffers()[1], np.int32)[::4][texts.offset :][: len(texts)]
    return pc.if_else(texts.is_valid(), pyarrow.array(lengths), 0)


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
