"""Reads lines of a text; holds at most as much as one row may have."""

from collections.abc import Iterator
from io import TextIOWrapper
from itertools import count

from onebert_store.errors import InvalidData
from onebert_store.tables.text.unicode import is_blank

MAX_ROW_CHARACTERS = 2**26
MAX_BLANK_LINES = 2**22  # one after another


class LongRow(Exception):
    """A row has more than `MAX_ROW_CHARACTERS` characters, or over `MAX_BLANK_LINES` lines in a row are blank."""

    def __str__(self) -> str:
        return " ".join(self.args) or f"a row has more than {MAX_ROW_CHARACTERS:,} characters"


class Lines(Iterator[str]):
    """Yields lines with their ends; raises LongRow if those since `begin_row` are too long, or too many are blank."""

    def __init__(self, stream: TextIOWrapper) -> None:
        self._stream, self._blank = stream, 0
        self.begin_row()

    def begin_row(self) -> None:
        """Starts a new row, which restarts the count of characters."""
        self._left = MAX_ROW_CHARACTERS

    def __next__(self) -> str:
        line = self._stream.readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise LongRow
        if not line:
            raise StopIteration
        self._blank = self._blank + 1 if is_blank(line) else 0
        if self._blank > MAX_BLANK_LINES:
            raise LongRow(f"more than {MAX_BLANK_LINES:,} lines are blank")
        return line


def numbered_lines(stream: TextIOWrapper, name: str) -> Iterator[tuple[int, str]]:
    """Yields numbers and lines of a text in which each line is a row; skips blank lines."""
    lines = Lines(stream)
    for number in count(1):
        lines.begin_row()
        try:
            line = next(lines, None)
        except LongRow as error:
            raise InvalidData(f"{name} line {number}: {error}") from None
        if line is None:
            return
        if not is_blank(line):
            yield number, line
