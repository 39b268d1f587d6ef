"""Reads any file row by row, for training, evaluation, checks and answers."""

import zlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pyarrow

from onebert_store.disk import POINTER, is_pointer
from onebert_store.errors import InvalidData, InvalidSettings
from onebert_store.tables.binary.arrow import (
    BAD_CELL,
    arrow_batches,
    binary_note,
    label_names_in,
    parquet_batches,
    rows_of,
)
from onebert_store.tables.binary.sheet import Sheet
from onebert_store.tables.file import File
from onebert_store.tables.table import Unit
from onebert_store.tables.text.conll import COLUMNS as CONLL_COLUMNS
from onebert_store.tables.text.conll import are_numbered, are_tagged, sentences
from onebert_store.tables.text.csv_rows import CsvRows
from onebert_store.tables.text.delimiter import find_delimiter
from onebert_store.tables.text.encoding import find_encoding, first_undecodable, open_text
from onebert_store.tables.text.json_rows import NO_OBJECT, JsonRows, json_lines
from onebert_store.tables.text.lines import Lines, numbered_lines
from onebert_store.tables.text.unicode import HALF, is_unicode


class Record(NamedTuple):
    """A row of a file by its line, or row, from 1; empty cells may be missing. A faulty row has only its `fault`."""

    number: int
    cells: Mapping[str, Any]
    fault: str = ""


@dataclass
class Records(Iterator[Record]):
    """The rows of a file, in order; `rows` are those not read yet.

    Attributes:
        names: the columns; None if rows may differ (JSON).
        delimiter: of a CSV, in words.
        notes: tell the user how the file was read; empty ones are left out.
        schema: types of the columns, if the file has types.
        label_names: column -> names by label index, if the file has them.
    """

    name: str
    unit: Unit
    names: tuple[str, ...] | None
    rows: Iterator[Record] = field(repr=False)
    encoding: str | None = None
    delimiter: str | None = None
    notes: tuple[str, ...] = ()
    schema: pyarrow.Schema | None = None
    label_names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.notes = tuple(filter(None, self.notes))

    def __next__(self) -> Record:
        return next(self.rows)


_Reader = Callable[[File, str | None, ExitStack], Records]


def extension_of(name: str) -> str:
    """Returns the ending of a file's name that selects its reader; empty if it is not known."""
    return next((extension for extension in READERS if name.lower().endswith(extension)), "")


@contextmanager
def open_records(file: File, encoding: str | None = None) -> Iterator[Records]:
    """Opens a file's rows by its ending; `encoding` None finds it. Raises InvalidSettings for a needless sheet."""
    read = _reader_of(file)
    if read is None:
        raise InvalidData(f"{file.name}: the name ends in one of {', '.join([*READERS, *LINES])}")
    if file.sheet is not None and read is not _sheet:
        raise InvalidSettings(f"--sheet names a sheet of an .xlsx workbook, which {file.name} is not")
    with ExitStack() as opened:
        try:
            with file.open() as stream:
                if is_pointer(stream.read(64)):
                    raise InvalidData(f"{file.name}: {POINTER}")
            records = read(file, encoding, opened)
        except _BROKEN as error:
            raise _unreadable(error, file, encoding) from None
        records.rows = _typed(records.rows, file, records)
        yield records


def _typed(rows: Iterator[Record], file: File, records: Records) -> Iterator[Record]:
    # Wraps only the reading of each row, so that errors in the consumer's code are not blamed on the file.
    number = 0
    while True:
        try:
            record = next(rows, None)
        except _BROKEN as error:
            place = f" after {records.unit} {number}" if number else ""
            raise _unreadable(error, file, records.encoding, place) from None
        if record is None:
            return
        number = record.number
        yield record


BETWEEN_COLUMNS = " are between the columns"
"""The end of the note on an unusual separator."""

_BROKEN = (OSError, EOFError, UnicodeError, zlib.error, pyarrow.ArrowException)


def _unreadable(error: Exception, file: File, encoding: str | None, place: str = "") -> InvalidData:
    if isinstance(error, UnicodeDecodeError) and _reader_of(file) in (_csv, _json, _lines, _words):
        spelled = encoding or error.encoding
        if line := first_undecodable(file, spelled):
            return InvalidData(f"{file.name} line {line} is not readable as {spelled}")
    # gzip's and pyarrow's messages may quote content or path, so only the error's type is shown.
    return InvalidData(f"{file.name} is not readable{place} ({type(error).__name__})")


def _csv(file: File, preferred: str | None, opened: ExitStack) -> Records:
    encoding = find_encoding(file, preferred)
    delimiter = find_delimiter(file, encoding.name)
    rows = CsvRows(opened.enter_context(open_text(file, encoding.name)), file.name, delimiter)
    unusual = "" if delimiter.usual else f"{file.name}: {delimiter.name}{BETWEEN_COLUMNS}"
    records, notes = _with_names(rows, rows.header), (encoding.doubt, unusual)
    return Records(file.name, "line", tuple(rows.header), records, encoding.name, delimiter.name, notes)


def _with_names(rows: Iterator[tuple[int, list[Any]]], header: list[str], short: bool = False) -> Iterator[Record]:
    for number, cells in rows:
        if len(cells) == len(header) or (short and len(cells) < len(header)):
            yield Record(number, dict(zip(header, cells, strict=False)))
        else:
            yield Record(number, {}, f"{_many(len(cells), 'cell')} under {_many(len(header), 'column')}")


def _many(number: int, noun: str) -> str:
    return f"{number} {noun}{'s' * (number != 1)}"


def _json(file: File, preferred: str | None, opened: ExitStack) -> Records:
    encoding = find_encoding(file, preferred)
    stream = opened.enter_context(open_text(file, encoding.name))
    numbered: Iterator[tuple[int, dict[str, Any] | None]]
    lines = file.bare_name.endswith(".jsonl")
    if lines:
        numbered, doubt = json_lines(stream, file.name), ""
    else:
        numbered = values = JsonRows(stream, file.name)
        doubt = values.doubt
    rows = (_of_object(number, row) for number, row in numbered)
    return Records(file.name, "line" if lines else "row", None, rows, encoding.name, notes=(encoding.doubt, doubt))


def _of_object(number: int, row: dict[str, Any] | None) -> Record:
    if row is None:
        return Record(number, {}, NO_OBJECT)
    return Record(number, row) if all(map(is_unicode, row)) else Record(number, {}, f"the name of a column has {HALF}")


def _sheet(file: File, preferred: str | None, opened: ExitStack) -> Records:
    rows = Sheet(file, opened)
    records = _with_names(rows, rows.header, short=True)
    return Records(file.name, "row", tuple(rows.header), records, notes=(rows.doubt,))


def _batches(open_batches: Callable[[File, ExitStack], Any]) -> _Reader:
    def read(file: File, preferred: str | None, opened: ExitStack) -> Records:
        schema, batches = open_batches(file, opened)
        if len(set(schema.names)) != len(schema.names):
            raise InvalidData(f"{file.name}: two columns have one name")
        numbered = enumerate(rows_of(batches), start=1)
        rows = (Record(number, {}, BAD_CELL) if row is None else Record(number, row) for number, row in numbered)
        names, notes = tuple(schema.names), (binary_note(schema, file.name),)
        return Records(file.name, "row", names, rows, notes=notes, schema=schema, label_names=label_names_in(schema))

    return read


def _lines(file: File, preferred: str | None, opened: ExitStack) -> Records:
    """Reads one text per line into a column `text`; or words with tags, if every line is a word with its tag."""
    encoding = find_encoding(file, preferred)
    with open_text(file, encoding.name) as stream:
        if are_tagged(numbered_lines(stream, file.name)):
            return _words(file, encoding.name, opened)
    lines = numbered_lines(opened.enter_context(open_text(file, encoding.name)), file.name)
    rows = (Record(number, {"text": line.rstrip("\r\n")}) for number, line in lines)
    return Records(file.name, "line", ("text",), rows, encoding.name, notes=(encoding.doubt,))


def _words(file: File, preferred: str | None, opened: ExitStack) -> Records:
    encoding = find_encoding(file, preferred)
    with open_text(file, encoding.name) as stream:
        word = int(are_numbered(sentences(Lines(stream), file.name)))
    tagged = sentences(Lines(opened.enter_context(open_text(file, encoding.name))), file.name, word)
    rows = (Record(number, dict(zip(CONLL_COLUMNS, cells, strict=True)), fault) for number, cells, fault in tagged)
    return Records(file.name, "line", CONLL_COLUMNS, rows, encoding.name, notes=(encoding.doubt,))


READERS: Mapping[str, _Reader] = {
    **dict.fromkeys((".csv", ".csv.gz", ".tsv", ".tsv.gz"), _csv),
    **dict.fromkeys((".jsonl", ".jsonl.gz", ".json", ".json.gz"), _json),
    **dict.fromkeys((".conll", ".iob", ".iob2", ".bio"), _words),
    ".xlsx": _sheet,
    ".parquet": _batches(parquet_batches),
    ".arrow": _batches(arrow_batches),
}

# Read only if the file is named: folders often contain notes beside the tables.
LINES: Mapping[str, _Reader] = dict.fromkeys((".txt", ".txt.gz"), _lines)


def _reader_of(file: File) -> _Reader | None:
    reader = READERS.get(extension_of(file.name))
    return reader or next((read for ending, read in LINES.items() if file.name.lower().endswith(ending)), None)
