"""Where the commands' texts come from: arguments, lines, or the columns of a table; each with its place."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import typer

from onebert_server.cli.rows import Row, Rows, open_rows
from onebert_store.command import console
from onebert_store.errors import InvalidData, InvalidInput

if TYPE_CHECKING:
    from onebert_server.client import Input

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

    input: "Input"
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


def from_file(file: Path, columns: tuple[str | None, str | None], encoding: str | None, pair: bool) -> Iterator[Asked]:
    """A text per line of a .txt file or one without an ending; else the rows of a table, read as `onebert train` does.

    Args:
        file: where they are.
        columns: of a table, those of the text and of its pair; None is found by name.
        encoding: of a table without a byte order mark; None finds it.
        pair: every input is a pair.

    Raises:
        InvalidInput: the file cannot be read, or a line is not one.
        InvalidData: the file is no table, or has no column of texts.
    """
    if file.suffix.lower() not in LINES:
        return _rows(file, columns, encoding, pair)
    _refuse_columns(columns, encoding)
    return _lines_of(file, pair)


def from_lines(lines: Iterable[bytes] | BinaryIO, pair: bool) -> Iterator[Asked]:
    """One input per line that is not blank; pairs are split at their tab."""
    for number, raw in enumerate(lines, 1):
        if not raw.strip():
            continue
        try:
            line = raw.decode("utf-8-sig" if number == 1 else "utf-8").rstrip("\r\n")
        except ValueError:
            raise InvalidInput(f"line {number} is not UTF-8") from None
        parts = line.split("\t") if pair else [line]
        if not all(part.strip() for part in parts) or len(parts) != (2 if pair else 1):
            raise InvalidInput(f"line {number} does not hold {'two texts' if pair else 'a text'}")
        yield Asked((parts[0], parts[1]) if pair else line, {"line": number})


def _lines_of(file: Path, pair: bool) -> Iterator[Asked]:
    try:
        opened = file.open("rb")
    except OSError:
        raise InvalidInput("the file of texts cannot be read") from None
    with opened:
        yield from from_lines(opened, pair)


@contextmanager
def rows_of(file: Path, columns: tuple[str | None, str | None], encoding: str | None, pair: bool) -> Iterator[Rows]:
    """The rows of a file: of a table, or of a text per line the columns `line` and `text`; says how it is read."""
    if file.suffix.lower() in LINES:
        _refuse_columns(columns, encoding)
        yield Rows(("line", "text", *["text_pair"] * pair), None, None, (), _as_rows(_lines_of(file, pair)))
        return
    with open_rows(file, columns, encoding, pair) as rows:
        for note in rows.notes:
            console.err.print(f"note: {note}", soft_wrap=True)
        yield rows


def _as_rows(lines: Iterable[Asked]) -> Iterator[Row]:
    for one in lines:
        texts = (one.input,) if isinstance(one.input, str) else one.input
        yield Row(one.input, one.place, one.place | dict(zip(("text", "text_pair"), texts, strict=False)))


def _refuse_columns(columns: tuple[str | None, str | None], encoding: str | None) -> None:
    if any(columns) or encoding:
        raise typer.BadParameter("--text, --text-pair and --encoding are for tables; this file has a text per line")


def _rows(file: Path, columns: tuple[str | None, str | None], encoding: str | None, pair: bool) -> Iterator[Asked]:
    """The texts of a table, in its order, as they are read."""
    with rows_of(file, columns, encoding, pair) as rows:
        for row in rows:
            if row.input is None:
                where = " ".join(f"{unit} {number}" for unit, number in row.place.items())
                raise InvalidData(f"{file.name} {where}: {row.fault}")
            yield Asked(row.input, {**row.place} | ({} if rows.id is None else {"id": row.cells.get(rows.id)}))
