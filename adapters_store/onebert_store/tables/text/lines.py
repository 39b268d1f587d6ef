"""Lines of a text, of which no more is held than a row may have."""

from collections.abc import Iterator
from io import TextIOWrapper

MAX_ROW_CHARACTERS = 2**26


class LongRow(Exception):
    """A row has more than `MAX_ROW_CHARACTERS` characters."""


class Lines(Iterator[str]):
    """Lines with their ends; one row may take several, where its cells have line ends in quotes.

    Args:
        stream: the text.

    Raises:
        LongRow: while lines are taken, where those since `begin_row` are longer than a row may be.
    """

    def __init__(self, stream: TextIOWrapper) -> None:
        self._stream = stream
        self.begin_row()

    def begin_row(self) -> None:
        """What is taken from here on is another row."""
        self._left = MAX_ROW_CHARACTERS

    def __next__(self) -> str:
        line = self._stream.readline(self._left + 1)
        self._left -= len(line)
        if self._left < 0:
            raise LongRow
        if not line:
            raise StopIteration
        return line
