"""Reads the commands' texts from arguments, lines or table columns, each with its place."""

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

# Endings of files with a text per line; all others are read as tables, or rejected.
LINES = ("", ".txt")


@dataclass(frozen=True)
class Asked:
    """An input and its place: `line` or `row`, from 1, and the table's `id`, or an argument's `number`, from 1."""

    input: Input
    place: dict[str, Any]
    number: int = 0


_INPUT = re.compile(r"\binput (\d{1,9})\b")


def first_refused(detail: str) -> int | None:
    """The index in its batch of the first input that the error names; None if it names none."""
    found = _INPUT.search(detail)
    return int(found[1]) if found else None


def located(detail: str, batch: Sequence[Asked]) -> str:
    """Replaces `input 3` in the client's error by the input's line, row or argument number."""

    def named(found: re.Match[str]) -> str:
        if int(found[1]) >= len(batch):
            return found[0]
        one = batch[int(found[1])]
        return next((f"{unit} {number}" for unit, number in one.place.items()), f"input {one.number}")

    return _INPUT.sub(named, detail)


def from_arguments(texts: list[str], pair: bool) -> Iterator[Asked]:
    """Texts of the command line, two by two for pairs."""
    if pair and len(texts) % 2:
        raise typer.BadParameter("pairs need an even number of texts")
    inputs: Iterable[Input] = zip(texts[::2], texts[1::2], strict=True) if pair else texts
    return (Asked(one, {}, number) for number, one in enumerate(inputs, 1))


def from_file(file: Path, reading: Reading, pair: bool) -> Iterator[Asked]:
    """The lines of a .txt file (or one without an ending), or the rows of a table, read as by `onebert train`."""
    with rows_of(file, reading, pair) as rows:
        for row in rows:
            if row.input is None:
                where = " ".join(f"{unit} {number}" for unit, number in row.place.items())
                raise InvalidData(f"{file.name} {where}: {row.fault}")
            yield Asked(row.input, {**row.place} | ({} if rows.id is None else {"id": row.cells.get(rows.id)}))


def from_lines(stream: BinaryIO, pair: bool) -> Iterator[Asked]:
    """The non-blank lines of standard input."""
    for row in _lines(stream, "standard input", pair):
        if row.input is None:
            raise InvalidInput(f"line {row.place['line']} {row.fault}")
        yield Asked(row.input, {**row.place})


@contextmanager
def rows_of(file: Path, reading: Reading, pair: bool) -> Iterator[Rows]:
    """The rows of a table, or of a text file as columns `line` and `text`; prints notes on how a table is read."""
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
    """Non-blank lines, with the line ends of tables; pairs are split at their tab."""
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
