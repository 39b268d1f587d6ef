"""Where the commands' texts come from: arguments, lines, or the columns of a table; each with its place."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

import typer

from onebert_server.cli.rows import Reading, Row, Rows, open_rows
from onebert_server.client import Input
from onebert_store.command import console
from onebert_store.errors import InvalidData, InvalidInput

# What is read as a text per line; whatever else has an ending is read as a table, or refused.
LINES = ("", ".txt")


@dataclass(frozen=True)
class Asked:
    """An input and where it stands, as scripts find it again.

    Attributes:
        input: a text or a pair.
        place: `line` or `row`, counted from 1, and `id` where the table has such a column.
        number: of an argument, its place among the inputs, counted from 1.
    """

    input: Input
    place: dict[str, Any]
    number: int = 0


_INPUT = re.compile(r"\binput (\d{1,9})\b")


def first_refused(detail: str) -> int | None:
    """The index in its batch of the input that the client refuses; None where the refusal does not say it."""
    found = _INPUT.search(detail)
    return int(found[1]) if found else None


def located(detail: str, batch: Sequence[Asked]) -> str:
    """What the client says of `input 3` of a batch, said of its line, its row or its number among the arguments."""

    def named(found: re.Match[str]) -> str:
        if int(found[1]) >= len(batch):
            return found[0]
        one = batch[int(found[1])]
        return next((f"{unit} {number}" for unit, number in one.place.items()), f"input {one.number}")

    return _INPUT.sub(named, detail)


def from_arguments(texts: list[str], pair: bool) -> Iterator[Asked]:
    """Texts of the command line, two by two where they are pairs."""
    if pair and len(texts) % 2:
        raise typer.BadParameter("pairs need an even number of texts")
    inputs: Iterable[Input] = zip(texts[::2], texts[1::2], strict=True) if pair else texts
    return (Asked(one, {}, number) for number, one in enumerate(inputs, 1))


def from_file(file: Path, reading: Reading, pair: bool) -> Iterator[Asked]:
    """A text per line of a .txt file or one without an ending; else the rows of a table, read as `onebert train` does.

    Raises:
        InvalidInput: the file cannot be read, or a line is not a text.
        InvalidData: the file is no table, has no column of texts, or a row has no text.
    """
    with rows_of(file, reading, pair) as rows:
        for row in rows:
            if row.input is None:
                where = " ".join(f"{unit} {number}" for unit, number in row.place.items())
                raise InvalidData(f"{file.name} {where}: {row.fault}")
            yield Asked(row.input, {**row.place} | ({} if rows.id is None else {"id": row.cells.get(rows.id)}))


def from_lines(stream: BinaryIO, pair: bool) -> Iterator[Asked]:
    """One input per line of standard input that is not blank."""
    for row in _lines(stream, "standard input", pair):
        if row.input is None:
            raise InvalidInput(f"line {row.place['line']} {row.fault}")
        yield Asked(row.input, {**row.place})


@contextmanager
def rows_of(file: Path, reading: Reading, pair: bool) -> Iterator[Rows]:
    """The rows of a file: of a table, or of a text per line the columns `line` and `text`; says how it is read."""
    if file.suffix.lower() in LINES:
        if any(reading):
            raise typer.BadParameter(
                "--text, --text-pair, --encoding and --sheet are for tables; this file has a text per line"
            )
        try:
            opened = file.open("rb")
        except OSError:
            raise InvalidInput("the file of texts cannot be read") from None
        with opened:
            columns = ("line", "text", *["text_pair"] * pair)
            yield Rows(columns, None, None, (), _lines(opened, file.name, pair))
        return
    with open_rows(file, reading, pair) as rows:
        for note in rows.notes:
            console.tell(f"note: {note}")
        yield rows


def _lines(stream: BinaryIO, name: str, pair: bool) -> Iterator[Row]:
    """The lines of a text that are not blank, which end as those of tables do; pairs are split at their tab."""
    from onebert_store.tables.text.lines import numbered_lines  # noqa: PLC0415 - as in `open_rows`
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
