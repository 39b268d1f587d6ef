"""The rows of an input file, in windows: of Parquet from any row on, of other formats from the beginning."""

import json
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from io import BufferedReader
from typing import Any

import numpy as np
import pyarrow
import pyarrow.compute as pc
from pyarrow import types

from onebert_encoder.answering.scores import Array
from onebert_encoder.text.tokens import Text
from onebert_server.limits import MAX_TEXT
from onebert_server.score.sources import Source
from onebert_store.errors import InvalidData
from onebert_store.file.strict_json import printable
from onebert_store.suggestion import suggestion
from onebert_store.tables.binary.arrow import Parquet, binary_note
from onebert_store.tables.columns import Columns, named, require_texts
from onebert_store.tables.file import File
from onebert_store.tables.records import Record, open_records
from onebert_store.tables.sample import sample_of, sample_of_schema
from onebert_store.tables.table import Table, cell_of
from onebert_store.tables.text.unicode import HALF, escaped, is_blank, is_unicode

# A window ends with the row at which its texts and kept cells reach this many bytes (characters, in text files); this
# bounds memory.
WINDOW_BYTES = 2**22
# Kept if the input has no column to keep: the row's number in its file, from 1.
ROW = "row"
# The last column: why a row has no answer.
ERROR = "error"
# Bytes that are not UTF-8 are refused row by row.
_TEXTS = pc.CastOptions(pyarrow.large_string(), allow_invalid_utf8=True)
# In place of the name of a column to keep: all of them.
EVERY = "*"


@dataclass(frozen=True)
class ChosenColumns:
    """Names of the columns of the text (or of a pair's two texts), and of the columns to keep."""

    texts: tuple[str, ...]
    ids: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Rows:
    """Consecutive rows of one file: kept columns, and by row either a text (or pair) or an error."""

    ids: pyarrow.Table
    texts: list[Text | None]
    errors: list[str | None]

    def distinct(self) -> tuple[list[Text], list[int | None]]:
        """The texts, each once, and by row the index of its text; None for a row without a text."""
        index = {text: i for i, text in enumerate(dict.fromkeys(text for text in self.texts if text is not None))}
        return list(index), [None if text is None else index[text] for text in self.texts]

    def with_answers(
        self, answers: Mapping[str, pyarrow.Array], of_row: Sequence[int | None], errors: Sequence[str | None]
    ) -> pyarrow.Table:
        """The output rows: kept columns, `answers` by column and distinct text, and the errors."""
        index = pyarrow.array(of_row, pyarrow.int64())
        columns = dict(zip(self.ids.column_names, self.ids.columns, strict=True))
        columns |= {name: column.take(index) for name, column in answers.items()}
        return pyarrow.table({**columns, ERROR: pyarrow.array(errors, pyarrow.string())})


def choose_columns(sample: Table, columns: Columns, ids: Sequence[str], origin: str) -> ChosenColumns:
    """The text columns and the kept columns, as given or found by the usual names; `EVERY` keeps all columns.

    Raises InvalidData for a missing column.
    """
    texts = require_texts(sample, columns)
    if EVERY in ids:
        return ChosenColumns(texts, tuple(sample))
    columns_by_id = {name: named(sample, name) for name in ids or ("id",)}
    if lacking := [name for name, column in columns_by_id.items() if ids and column is None]:
        present = ", ".join(printable(name, 40) for name in list(sample)[:10])
        lacked = f"{printable(lacking[0])}{suggestion(lacking[0], sample)}"
        raise InvalidData(f"{origin} has no column {lacked} (the columns are {present})")
    return ChosenColumns(texts, tuple(dict.fromkeys(column for column in columns_by_id.values() if column is not None)))


class RecordRows:
    """A stream of records. Kept cells are written as text: CSV has no types, and JSON types may change between rows."""

    def __init__(self, source: Source, encoding: str | None, opened: ExitStack) -> None:
        self._source, self._encoding = source, encoding
        self._file = File(source.name, source.buffered, source.sheet)
        self._records = opened.enter_context(open_records(replace(self._file, open=self._open), encoding))
        self.row, self.notes = 0, self._records.notes

    def _open(self) -> BufferedReader:
        self._latest = self._source.buffered()
        return self._latest

    @property
    def share(self) -> float:
        """By the bytes of the file, which is opened several times."""
        return min(self._latest.raw.tell() / self._source.size, 1.0) if self._source.size else 1.0

    def sample(self) -> Table:
        # A header is enough; JSON and typed files have to be read whole, which downloads them again from a bucket.
        if self._records.names is not None and self._records.schema is None:
            return Table({name: [""] for name in self._records.names}, self._records.name)
        return sample_of(self._file, self._encoding)

    def choose(self, chosen: ChosenColumns) -> None:
        self._chosen = chosen
        names = self._records.names
        # Only headers can be checked: a JSON row may have keys that others lack. For `a.b`, column `a` is enough.
        for name in (*chosen.texts, *chosen.ids) if names is not None else ():
            if not {name, name.partition(".")[0]} & {*(names or ())}:
                raise InvalidData(f"{self._records.name} has no column {name}")

    def skip(self, rows: int) -> None:
        while rows and self._next() is not None:
            rows -= 1

    def take(self, limit: int) -> Rows:
        first, characters = self.row, 0
        read: list[tuple[Text | None, str | None]] = []
        ids: list[list[str | None]] = []
        while len(read) < limit and characters < WINDOW_BYTES and (record := self._next()) is not None:
            cells = [cell_of(record.cells, name) for name in self._chosen.texts]
            why = f"{self._records.unit} {record.number}: {record.fault}"
            read.append((None, why) if record.fault else _checked(cells))
            ids.append([_as_text(cell_of(record.cells, name)) for name in self._chosen.ids])
            characters += sum(len(cell) for cell in (*cells, *ids[-1]) if isinstance(cell, str))
        texts, errors = [text for text, _ in read], [error for _, error in read]
        if not self._chosen.ids:
            return Rows(_numbered(first, len(read)), texts, errors)
        columns = [pyarrow.array([row[i] for row in ids], pyarrow.string()) for i in range(len(self._chosen.ids))]
        return Rows(pyarrow.table(columns, names=list(self._chosen.ids)), texts, errors)

    def _next(self) -> Record | None:
        record = next(self._records, None)
        self.row += record is not None
        return record


class ParquetRows:
    """The stream of a Parquet file."""

    def __init__(self, file: Parquet, name: str) -> None:
        self.row = 0
        self.notes = tuple(filter(None, [binary_note(file.schema, name)]))
        self._file, self._name = file, name
        self._batches: Any = None
        self._held: pyarrow.Table | None = None

    @property
    def share(self) -> float:
        return self.row / self._file.rows if self._file.rows else 1.0

    def sample(self) -> Table:
        return sample_of_schema(self._file.schema, self._name)

    def choose(self, chosen: ChosenColumns) -> None:
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

    def take(self, limit: int) -> Rows:
        table = self._hold(limit)
        columns = [_column(table, name).slice(0, limit).cast(options=_TEXTS) for name in self._chosen.texts]
        sizes = sum(map(_bytes, [*columns, *table.slice(0, limit).select(self._chosen.ids).columns]))
        # Includes the row that reaches the limit.
        rows = min(limit, table.num_rows, 1 + int(np.searchsorted(np.cumsum(sizes), WINDOW_BYTES)))
        self._held = table.slice(rows)
        first, self.row = self.row, self.row + rows
        read = [_checked(cells) for cells in zip(*(_cells(column.slice(0, rows)) for column in columns), strict=True)]
        ids_table = table.slice(0, rows).select(self._chosen.ids).combine_chunks()
        ids = ids_table if self._chosen.ids else _numbered(first, rows)
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


def _checked(cells: Sequence[Any]) -> tuple[Text | None, str | None]:
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


def _numbered(first: int, rows: int) -> pyarrow.Table:
    return pyarrow.table({ROW: np.arange(first + 1, first + 1 + rows, dtype=np.int64)})


def _as_text(cell: Any) -> str | None:
    if cell is None:
        return None
    text = cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False, default=str)
    return escaped(text)


def _column(table: pyarrow.Table, name: str) -> pyarrow.ChunkedArray:
    """A column; `a.b` is field `b` of struct column `a`."""
    column, *path = [name] if name in table.column_names else name.split(".")
    return pc.struct_field(table[column], path) if path else table[column]


def _is_text(kind: pyarrow.DataType) -> bool:
    if types.is_dictionary(kind):
        return _is_text(kind.value_type)
    texts = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    return any(is_text(kind) for is_text in texts) or str(kind).startswith(("binary", "large_binary", "fixed_size_b"))


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
