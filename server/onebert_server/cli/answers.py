"""Writes the rows of a table with their answers, in the format of the output file."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from onebert_server.cli.rows import Row, Rows
from onebert_server.client import TaskResult, as_dict
from onebert_store.errors import InvalidSettings
from onebert_store.tables.writers import WRITERS, ParquetWriter, Writer

if TYPE_CHECKING:
    import pyarrow


# Fields of an answer, in order; the file has a column for each field that the first answer has.
_SAID = "label score labels scores words entities answers abstained energy truncated windows".split()
_ALWAYS = ("version", "digest", "error")


class AnswersFile:
    """A file of rows and answers; the first answer determines the columns, and `task` is their prefix.

    Counts the rows added, those without an answer, and those with a truncated text. `add` raises InvalidSettings if an
    answer's column has the name of an input column.
    """

    def __init__(self, file: BinaryIO, name: str, task: str, rows: Rows) -> None:
        self._file, self._make, self._task, self._rows = file, WRITERS[Path(name).suffix.lower()], task, rows
        self._writer: Writer | None = None
        self._said: tuple[str, ...] = ()
        self._held: list[Row] = []
        self.count = self.without = self.cut = 0

    def add(self, row: Row, result: TaskResult | None, error: str | None = None) -> None:
        """Adds a row with its answer, or with its error."""
        self.count += 1
        self.without += result is None
        self.cut += result is not None and result.truncated is True
        if self._writer is None and result is None:
            self._held.append(row if error is None else Row(None, row.place, row.cells, error))
            return
        self._begin(result)
        self._write(row, result, error)

    def end(self) -> None:
        self._begin(None)
        if self._writer is not None:
            self._writer.end()

    def _begin(self, first: TaskResult | None) -> None:
        if self._writer is not None:
            return
        there = [name for name in _SAID if first is not None and getattr(first, name) is not None]
        self._said = (*there, *_ALWAYS)
        mine = [f"{self._task}_{name}" for name in self._said]
        if twice := [name for name in mine if name in self._rows.columns]:
            raise InvalidSettings(f"two columns would be called {twice[0][:80]}")
        # Only Parquet needs types, and `_types` imports pyarrow. Untyped input columns become text.
        types = _types(self._task, self._rows.schema) if self._make is ParquetWriter else {}
        self._writer = self._make(self._file, (*self._rows.columns, *mine), types)
        held, self._held = self._held, []
        for row in held:
            self._write(row, None, None)

    def _write(self, row: Row, result: TaskResult | None, error: str | None) -> None:

        answer = {} if result is None else as_dict(result)
        # Offsets count code points, which other languages may not: add the text itself.
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
