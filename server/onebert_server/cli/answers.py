"""Writes the rows of a table with their answers beside them: CSV, JSON lines or Parquet, row by row."""

import csv
import json
import math
from collections.abc import Callable, Mapping, Sequence
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Protocol

from onebert_server.cli.rows import Row, Rows
from onebert_store.errors import InvalidData, InvalidSettings

if TYPE_CHECKING:
    import pyarrow

    from onebert_server.client import TaskResult

# What an answer says, in order; of these a file has the columns that the first answer has.
_SAID = (
    "label",
    "score",
    "labels",
    "scores",
    "words",
    "entities",
    "answers",
    "abstained",
    "energy",
    "truncated",
    "windows",
)
_ALWAYS = ("version", "digest", "error")
_ROWS = 4096  # of a row group


class Writer(Protocol):
    """Takes rows in order; made with the file, its columns and their types."""

    def add(self, row: Mapping[str, Any]) -> None:
        """Writes a row, or keeps it for the next write."""

    def end(self) -> None:
        """Writes what is left; the file stays open."""


class CsvWriter:
    """Lists and objects are JSON in their cells. See Writer.

    Cells are written as they are, also those that begin with = or @, which a spreadsheet may take for a formula: what
    is put before them to prevent that would be in the data of everybody else.
    """

    def __init__(self, file: BinaryIO, columns: Sequence[str], types: Mapping[str, Any]) -> None:
        self._columns = columns
        # JSON may have half of a surrogate pair, which UTF-8 has not.
        self._text = TextIOWrapper(file, encoding="utf-8", errors="replace", newline="", write_through=True)
        self._writer = csv.writer(self._text, lineterminator="\r\n")
        self._writer.writerow(columns)

    def add(self, row: Mapping[str, Any]) -> None:
        """See Writer."""
        self._writer.writerow([_cell(row.get(name)) for name in self._columns])

    def end(self) -> None:
        """See Writer."""
        self._text.detach()


class JsonWriter:
    """Cells as JSON has them; others, as dates, as text. See Writer."""

    def __init__(self, file: BinaryIO, columns: Sequence[str], types: Mapping[str, Any]) -> None:
        self._file, self._columns = file, columns

    def add(self, row: Mapping[str, Any]) -> None:
        """See Writer."""
        line = _json({name: _finite(row.get(name)) for name in self._columns})
        self._file.write(line.encode(errors="replace") + b"\n")

    def end(self) -> None:
        """See Writer."""


class ParquetWriter:
    """Columns with the types that they have in the input; of a text file all are text. See Writer."""

    def __init__(self, file: BinaryIO, columns: Sequence[str], types: Mapping[str, Any]) -> None:
        import pyarrow  # noqa: PLC0415 - slow to import, and few files need it
        import pyarrow.parquet  # noqa: PLC0415

        self._schema = pyarrow.schema([(name, types.get(name, pyarrow.string())) for name in columns])
        self._writer = pyarrow.parquet.ParquetWriter(file, self._schema, compression="zstd")
        self._held: list[Mapping[str, Any]] = []

    def add(self, row: Mapping[str, Any]) -> None:
        """See Writer."""
        self._held.append(row)
        if len(self._held) == _ROWS:
            self._write()

    def end(self) -> None:
        """See Writer."""
        if self._held:
            self._write()
        self._writer.close()

    def _write(self) -> None:
        import pyarrow  # noqa: PLC0415

        columns = []
        for column in self._schema:
            cells = [row.get(column.name) for row in self._held]
            if pyarrow.types.is_string(column.type):
                cells = [None if cell is None else _clean(_cell(cell)) for cell in cells]
            try:
                columns.append(pyarrow.array(cells, column.type))
            except (pyarrow.ArrowException, ValueError, TypeError):
                raise InvalidData(f"the column {column.name[:40]} cannot be written to Parquet; write .jsonl") from None
        self._writer.write_table(pyarrow.Table.from_arrays(columns, schema=self._schema))
        self._held = []


WRITERS: Mapping[str, Callable[[BinaryIO, Sequence[str], Mapping[str, Any]], Writer]] = {
    ".csv": CsvWriter,
    ".jsonl": JsonWriter,
    ".parquet": ParquetWriter,
}


class AnswersFile:
    """Rows with their answers, in a file whose columns are known with the first answer.

    Args:
        file: what is written into.
        name: of the file, whose ending says what it is.
        task: name of the task, with which the names of the answer's columns begin.
        rows: the input, for its columns and types.

    Attributes:
        count: rows that were added.
        without: those among them that have no answer.
        cut: those among them whose text was longer than what was read.

    Raises:
        InvalidSettings: a column of the answer is called as one of the input; while rows are added.
    """

    def __init__(self, file: BinaryIO, name: str, task: str, rows: Rows) -> None:
        self._file, self._make, self._task, self._rows = file, WRITERS[Path(name).suffix.lower()], task, rows
        self._writer: Writer | None = None
        self._said: tuple[str, ...] = ()
        self._held: list[Row] = []
        self.count = self.without = self.cut = 0

    def add(self, row: Row, result: "TaskResult | None", error: str | None = None) -> None:
        """Adds a row with its answer, or with why it has none."""
        self.count += 1
        self.without += result is None
        self.cut += result is not None and result.truncated is True
        if self._writer is None and result is None:
            self._held.append(row if error is None else Row(None, row.place, row.cells, error))
            return
        self._begin(result)
        self._write(row, result, error)

    def end(self) -> None:
        """Writes what is left."""
        self._begin(None)
        if self._writer is not None:
            self._writer.end()

    def _begin(self, first: "TaskResult | None") -> None:
        if self._writer is not None:
            return
        there = [name for name in _SAID if first is not None and getattr(first, name) is not None]
        self._said = (*there, *_ALWAYS)
        mine = [f"{self._task}_{name}" for name in self._said]
        if twice := [name for name in mine if name in self._rows.columns]:
            raise InvalidSettings(f"two columns would be called {twice[0][:80]}")
        # Where the input has no types its columns are texts, and the answer's types need no library to be looked up.
        types = _types(self._task, self._rows.schema) if self._make is ParquetWriter else {}
        self._writer = self._make(self._file, (*self._rows.columns, *mine), types)
        held, self._held = self._held, []
        for row in held:
            self._write(row, None, None)

    def _write(self, row: Row, result: "TaskResult | None", error: str | None) -> None:
        from onebert_server.client import as_dict  # noqa: PLC0415

        answer = {} if result is None else as_dict(result)
        # Places count code points, which not every language does: what stands there is said, too.
        source = row.input if isinstance(row.input, str) else (row.input or ("", ""))[1]
        for found in (*(answer.get("words") or ()), *(answer.get("entities") or ())):
            found["text"] = source[found["start"] : found["end"]]
        where = " ".join(f"{unit} {number}" for unit, number in row.place.items())
        answer["error"] = error or (f"{where}: {row.fault}" if row.fault else None)
        cells = {**row.cells, **{f"{self._task}_{name}": answer.get(name) for name in self._said}}
        assert self._writer is not None  # noqa: S101 - `_begin` has made it
        self._writer.add(cells)


def _types(task: str, schema: "pyarrow.Schema | None") -> dict[str, Any]:
    import pyarrow  # noqa: PLC0415

    text, number, place = pyarrow.string(), pyarrow.float64(), pyarrow.int32()
    stretch = [("start", place), ("end", place), ("text", text)]
    words = pyarrow.list_(pyarrow.struct([*stretch, ("label", text), ("score", number)]))
    answers = {
        "score": number,
        "labels": pyarrow.list_(text),
        "scores": pyarrow.map_(text, number),
        "words": words,
        "entities": words,
        "answers": pyarrow.list_(pyarrow.struct([*stretch, ("score", number)])),
        "abstained": pyarrow.bool_(),
        "energy": pyarrow.float64(),
        "truncated": pyarrow.bool_(),
        "windows": place,
        "version": place,
    }
    kinds = {column.name: column.type for column in schema or ()}
    kinds = {name: kind.value_type if pyarrow.types.is_dictionary(kind) else kind for name, kind in kinds.items()}
    return kinds | {f"{task}_{name}": kind for name, kind in answers.items()}


def _cell(cell: Any) -> Any:
    return (
        _json(cell)
        if isinstance(cell, dict | list)
        else cell
        if isinstance(cell, str)
        else ""
        if cell is None
        else str(cell)
    )


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _finite(cell: Any) -> Any:
    return None if isinstance(cell, float) and not math.isfinite(cell) else cell


def _clean(text: str) -> str:
    return text if text.isascii() else text.encode(errors="replace").decode()
