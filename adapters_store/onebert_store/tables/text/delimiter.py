"""Finds the character between a CSV's columns: from its header, and if that leaves several, from its rows."""

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import dropwhile, islice

from onebert_store.tables.file import File
from onebert_store.tables.text.encoding import open_text
from onebert_store.tables.text.lines import Lines, LongRow

MAX_CELL_CHARACTERS = 16 * 2**20

_NAMES = {",": "commas", ";": "semicolons", "\t": "tabs"}
_HEADER_LINES = 100  # lines that a header may have, with line ends in quotes
_SEPARATOR_LINE = re.compile(r"sep=(.)\s*")  # Excel's first line, which is not a row


@dataclass(frozen=True)
class Delimiter:
    """The separator of columns; `skipped` lines precede the header; `usual` if the file's name suggests it."""

    character: str
    skipped: int
    usual: bool

    @property
    def name(self) -> str:
        return _NAMES.get(self.character, repr(self.character))


def find_delimiter(file: File, encoding: str) -> Delimiter:
    """Finds the separator: a line `sep=`, else one that splits the header, else one that fits most rows."""
    usual = "\t" if file.bare_name.endswith(".tsv") else ","
    with open_text(file, encoding) as stream:
        if separator := _SEPARATOR_LINE.fullmatch(stream.readline(8)):
            return Delimiter(separator[1], 1, separator[1] == usual)
    splitting = [delimiter for delimiter in _NAMES if len(_header(file, encoding, delimiter)) > 1]
    if len(splitting) > 1:
        splitting.sort(key=lambda delimiter: (_misfits(file, encoding, delimiter), delimiter != usual))
    delimiter = splitting[0] if splitting else usual
    return Delimiter(delimiter, 0, delimiter == usual)


def is_empty_row(row: list[str]) -> bool:
    """True if all cells are blank; such rows before the header are skipped."""
    return not any(map(str.strip, row))


def _header(file: File, encoding: str, delimiter: str) -> list[str]:
    with open_text(file, encoding) as stream:
        return next(_rows(Lines(stream), delimiter, _HEADER_LINES), [])


def _misfits(file: File, encoding: str, delimiter: str) -> int:
    with open_text(file, encoding) as stream:
        rows = _rows(Lines(stream), delimiter)
        columns = len(next(rows, []))
        return sum(len(row) != columns for row in rows if row)


def _rows(lines: Lines, delimiter: str, limit: int | None = None) -> Iterator[list[str]]:
    """Yields rows from the header on; an unreadable row counts as a misfit here, and reading the file rejects it."""
    csv.field_size_limit(MAX_CELL_CHARACTERS)
    try:
        for row in dropwhile(is_empty_row, csv.reader(islice(lines, limit), delimiter=delimiter)):
            yield row
            lines.begin_row()
    except (csv.Error, LongRow):
        yield ["", "", ""] * 1000
