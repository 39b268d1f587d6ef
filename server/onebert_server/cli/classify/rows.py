"""Reads the inputs of `onebert classify`: arguments, lines, or the rows of a table as `onebert train` reads them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import typer

from onebert_server.client import Input
from onebert_store.command import console
from onebert_store.errors import InvalidData, InvalidInput

# Heavy imports are inside the functions: arguments need none of them.
if TYPE_CHECKING:
    import pyarrow

    from onebert_store.tables.records import Record

# Endings of files with a text per line; all others are read as tables, or rejected.
LINES = ("", ".txt")


class Reading(NamedTuple):
    """The user's options for reading a table; None finds columns and encoding by itself, and takes the first sheet."""

    text: str | None = None
    text_pair: str | None = None
    encoding: str | None = None
    sheet: str | None = None


@dataclass(frozen=True)
class Row:
    """An input, or the fault why there is none.

    `place` has the `line` or `row` of the input, from 1, and a table's `id`; `number` is an argument's, from 1. `cells`
    are those of the whole row.
    """

    input: Input | None
    place: Mapping[str, Any] = field(default_factory=dict)
    cells: Mapping[str, Any] = field(default_factory=dict)
    fault: str = ""
    number: int = 0

    @property
    def where(self) -> str:
        """The input's place, in words."""
        return next((f"{unit} {number}" for unit, number in self.place.items()), f"input {self.number}")

    @property
    def halves(self) -> dict[str, str]:
        """The texts of the input, by the name of their field."""
        texts = (self.input,) if isinstance(self.input, str) else self.input or ()
        return dict(zip(("text", "text_pair"), texts, strict=False))


@dataclass(frozen=True)
class Rows:
    """The rows of a file with its columns and, if the file has types, a schema."""

    columns: Sequence[str]
    rows: Iterator[Row]
    schema: "pyarrow.Schema | None" = None


def from_arguments(texts: list[str], pair: bool) -> Iterator[Row]:
    """Texts of the command line, two by two for pairs."""
    if pair and len(texts) % 2:
        raise typer.BadParameter("pairs need an even number of texts")
    inputs: Iterable[Input] = zip(texts[::2], texts[1::2], strict=True) if pair else texts
    return (Row(one, number=number) for number, one in enumerate(inputs, 1))


def from_lines(stream: BinaryIO, pair: bool) -> Iterator[Row]:
    """The non-blank lines of standard input; raises InvalidInput at a line that holds no pair."""
    for row in _lines(stream, "standard input", pair):
        if row.fault:
            raise InvalidInput(f"{row.where} {row.fault}")
        yield row


def from_file(file: Path, reading: Reading, pair: bool) -> Iterator[Row]:
    """The rows of `open_table`; raises InvalidData at a row without an input."""
    with open_table(file, reading, pair) as table:
        for row in table.rows:
            if row.fault:
                raise InvalidData(f"{file.name} {row.where}: {row.fault}")
            yield row


@contextmanager
def open_table(path: Path, reading: Reading, pair: bool) -> Iterator[Rows]:
    """The rows of a table, or of a text file as columns `line` and `text`; prints notes on how a table is read.

    `pair` requires pairs. Raises InvalidInput or InvalidData, also while rows are taken.
    """
    from onebert_store.tables.columns import Columns, named, require_texts  # noqa: PLC0415
    from onebert_store.tables.file import file_at  # noqa: PLC0415
    from onebert_store.tables.records import open_records  # noqa: PLC0415
    from onebert_store.tables.sample import sample_of  # noqa: PLC0415

    if path.suffix.lower() in LINES:
        if any(reading):
            raise typer.BadParameter(
                "--text, --text-pair, --encoding and --sheet are for tables; this file has a text per line"
            )
        try:
            opened = path.open("rb")
        except OSError:
            raise InvalidInput("the file of texts cannot be read") from None
        with opened:
            yield Rows(("line", "text", *["text_pair"] * pair), _lines(opened, path.name, pair))
        return
    if not path.is_file():
        raise InvalidInput("the file of texts cannot be read")
    file = file_at(path, reading.sheet)
    sample = sample_of(file, reading.encoding)
    texts, id_column = require_texts(sample, Columns(reading.text, reading.text_pair)), named(sample, "id")
    if pair and len(texts) == 1:
        raise InvalidData(f"{path.name} has no two columns of texts; name them with --text and --text-pair")
    with open_records(file, reading.encoding) as records:
        for note in records.notes:
            console.tell(f"note: {note}")
        rows = (_row(record, texts, pair, records.unit, id_column) for record in records)
        yield Rows(list(sample), rows, records.schema)


def _row(record: "Record", texts: Sequence[str], pair: bool, unit: str, id_column: str | None) -> Row:
    from onebert_store.tables.table import cell_of  # noqa: PLC0415
    from onebert_store.tables.text.unicode import text_fault  # noqa: PLC0415

    cells = [cell_of(record.cells, name) for name in texts]
    # Unless pairs are required, a row may lack the second text.
    if len(cells) > 1 and cells[1] in (None, "") and not pair:
        del cells[1]
    place = {unit: record.number} | ({} if id_column is None else {"id": record.cells.get(id_column)})
    if fault := record.fault or text_fault(*cells):
        return Row(None, place, record.cells, fault)
    return Row(cells[0] if len(cells) == 1 else (cells[0], cells[1]), place, record.cells)


def _lines(stream: BinaryIO, name: str, pair: bool) -> Iterator[Row]:
    """Non-blank lines, with the line ends of tables; pairs are split at their tab."""
    from onebert_store.tables.text.lines import numbered_lines  # noqa: PLC0415
    from onebert_store.tables.text.unicode import is_unicode, text_fault  # noqa: PLC0415

    text = TextIOWrapper(stream, "utf-8-sig", errors="surrogateescape", newline="")
    try:
        for number, line in numbered_lines(text, name):
            if not is_unicode(line):
                raise InvalidInput(f"line {number} is not UTF-8")
            parts = line.rstrip("\r\n").split("\t") if pair else [line.rstrip("\r\n")]
            cells = {"line": number, **dict(zip(("text", "text_pair"), parts, strict=False))}
            if pair and (len(parts) != 2 or text_fault(*parts)):
                yield Row(None, {"line": number}, cells, "does not hold two texts")
            else:
                yield Row((parts[0], parts[1]) if pair else parts[0], {"line": number}, cells)
    finally:
        text.detach()
