"""Reads rows of a CSV or TSV one by one, as spreadsheets write them."""

import csv
import re
from collections.abc import Iterator
from io import TextIOWrapper
from itertools import dropwhile

from onebert_store.errors import InvalidData
from onebert_store.tables.text.delimiter import MAX_CELL_CHARACTERS, Delimiter, is_empty_row
from onebert_store.tables.text.lines import Lines, LongRow

_LINE_END = re.compile(r"\r\n|\r|\n")
_PROSE = re.compile(r"[,;](?=\s|$)|(?<=\d),(?=\d)")


class CsvRows(Iterator[tuple[int, list[str]]]):
    """Line numbers and cells behind the header, without blank rows; raises InvalidData, also while rows are taken."""

    def __init__(self, stream: TextIOWrapper, name: str, delimiter: Delimiter) -> None:
        csv.field_size_limit(MAX_CELL_CHARACTERS)
        self._name, self._before = name, delimiter.skipped
        self._lines = Lines(stream)
        try:
            for _ in range(delimiter.skipped):
                next(self._lines)
        except LongRow as error:
            raise self._too_long(1, error) from None
        self._delimiter, self._columns = delimiter.character, 0
        self._reader = csv.reader(self._lines, delimiter=delimiter.character, strict=True)
        self.header = header_of(next(dropwhile(is_empty_row, iter(self._read, None)), []), name)
        self._columns = len(self.header)

    def __next__(self) -> tuple[int, list[str]]:
        while True:
            line = self._reader.line_num + 1 + self._before
            cells = self._read()
            if cells is None:
                raise StopIteration
            if cells:
                return line, cells

    def _read(self) -> list[str] | None:
        line = self._reader.line_num + 1 + self._before
        self._lines.begin_row()
        try:
            cells = next(self._reader, None)
        except LongRow as error:
            raise self._too_long(line, error) from None
        except csv.Error as error:
            # csv.Error is the only type; its message tells the errors apart.
            if "field limit" in str(error):
                raise InvalidData(
                    f"{self._name} line {line} is not CSV: a cell has more than {MAX_CELL_CHARACTERS:,} characters; "
                    "is a quote left open?"
                ) from None
            raise InvalidData(
                f"{self._name} line {line} is not CSV: a quote is left open, or text follows a closing quote"
            ) from None
        lines = self._reader.line_num + self._before + 1 - line
        if cells and lines > 1 and self._holds_rows(cells):
            raise InvalidData(
                f"{self._name} line {line}: a quote opens a cell over {lines} lines that each look like a row; leave "
                "the quote out, or save as .jsonl if this is one row"
            )
        return cells

    def _holds_rows(self, cells: list[str]) -> bool:
        """True if each line of a row over several lines has a row's number of separators, none of them as in prose."""
        lines = _LINE_END.split(self._delimiter.join(cells))
        counts = [len(_PROSE.sub("", line).split(self._delimiter)) for line in lines]
        return self._columns > 1 and all(count == self._columns for count in counts)

    def _too_long(self, line: int, error: LongRow) -> InvalidData:
        return InvalidData(f"{self._name} line {line} is not CSV: {error}; is a quote left open?")


def header_of(cells: list[str], name: str) -> list[str]:
    """Returns the names of columns; unnamed ones become `column 3`. Raises InvalidData if two are equal."""
    header = [cell.strip() or f"column {place}" for place, cell in enumerate(cells, start=1)]
    if len(set(header)) != len(header):
        raise InvalidData(f"{name}: two columns have one name")
    return header
