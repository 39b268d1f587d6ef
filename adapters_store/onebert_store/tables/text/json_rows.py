"""Rows of JSON one by one: JSON lines, and files with an array, objects one after another, or one object of columns."""

import json
from collections.abc import Iterator, Mapping
from io import TextIOWrapper
from typing import Any

from onebert_store.errors import InvalidData

_CHUNK = 2**20  # characters
_MOST = 2**26  # characters of one line
NO_OBJECT = "not a JSON object"


def parse_json(text: str) -> Any:
    """Decodes JSON.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_lines(stream: TextIOWrapper, name: str) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Line numbers and objects of JSON lines, blank lines left out; None is a line that is not an object.

    Raises:
        InvalidData: a line is longer than any row may be.
    """
    number = 0
    while line := stream.readline(_MOST):
        number += 1
        if len(line) == _MOST:
            raise InvalidData(f"{name} line {number} has more than {_MOST:,} characters")
        if line.strip():
            try:
                row = parse_json(line)
            except ValueError:
                row = None
            yield number, row if isinstance(row, dict) else None


def json_rows(stream: TextIOWrapper, name: str) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Numbers and objects of a JSON file, counted from 1; None is an element that is not an object.

    An array and objects one after another are read as they come. A single object is taken whole: `{"data": [rows]}`,
    lists or mappings by column (as pandas writes a DataFrame), or one row.

    Raises:
        InvalidData: the file is not JSON; the message names the line.
    """
    values = _Values(stream, name)
    if values.next_character() == "[":
        found = values.elements()
    else:
        first = next(found := values.side_by_side(), None)
        second = next(found, None)
        rest = found
        found = iter(_rows_of(first, name)) if second is None else _chain(first, second, rest)
    for number, row in enumerate(found, start=1):
        yield number, row if isinstance(row, dict) else None


def _chain(first: Any, second: Any, rest: Iterator[Any]) -> Iterator[Any]:
    yield first
    yield second
    yield from rest


class _Values:
    """The JSON values of a text, of which no more is held than the one that is being read."""

    def __init__(self, stream: TextIOWrapper, name: str) -> None:
        self._stream, self._name = stream, name
        self._held, self._at, self._line, self._ended = "", 0, 1, False
        self._decoder = json.JSONDecoder()

    def elements(self) -> Iterator[Any]:
        """Of an array."""
        self._take("[")
        while self.next_character() != "]":
            yield self._value()
            if self.next_character() != "]":
                self._take(",")
                if self.next_character() == "]":
                    self._refuse("a value is missing")
        self._take("]")
        if self.next_character():
            self._refuse("something follows the array")

    def side_by_side(self) -> Iterator[Any]:
        """One after another."""
        while self.next_character():
            yield self._value()

    def next_character(self) -> str:
        """That is not blank; empty at the end."""
        while True:
            start = self._at
            while self._at < len(self._held) and self._held[self._at] in " \t\r\n":
                self._at += 1
            self._line += self._held.count("\n", start, self._at)
            if self._at < len(self._held):
                return self._held[self._at]
            if self._ended:
                return ""
            self._more()

    def _take(self, character: str) -> None:
        if self.next_character() != character:
            self._refuse(f"{character} is missing")
        self._at += 1

    def _value(self) -> Any:
        self.next_character()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._held, self._at)
            except RecursionError:
                self._refuse("it is nested too deeply")
            except ValueError as error:
                if self._ended:
                    # Of a number with thousands of digits the error says no place.
                    place = getattr(error, "pos", self._at)
                    self._line += self._held.count("\n", self._at, place)
                    self._refuse(getattr(error, "msg", "a number is too long"))
            else:
                # What stands at the end of what is held may go on behind it.
                if end < len(self._held) or self._ended:
                    self._line += self._held.count("\n", self._at, end)
                    self._at = end
                    return value
            self._more()

    def _more(self) -> None:
        """Twice as much of a value at a time, so that a long one is not read again and again."""
        more = self._stream.read(max(_CHUNK, len(self._held) - self._at))
        self._ended = not more
        self._held, self._at = self._held[self._at :] + more, 0

    def _refuse(self, why: str) -> None:
        raise InvalidData(f"{self._name} line {self._line} is not JSON: {why[:100]}")


def _rows_of(value: Any, name: str) -> list[Any]:
    """The rows of a file with a single object."""
    if not isinstance(value, dict):
        raise InvalidData(f"{name} has neither an array of JSON objects nor objects one after another")
    columns, data = value.get("columns"), value.get("data")
    if isinstance(columns, list) and isinstance(data, list) and all(isinstance(row, list) for row in data):
        return [dict(zip(map(str, columns), row, strict=False)) for row in data]
    tables = [cells for cells in value.values() if isinstance(cells, list) and cells and isinstance(cells[0], dict)]
    if isinstance(data, list) or len(tables) == 1:
        return data if isinstance(data, list) else tables[0]
    if value and all(isinstance(cells, list) for cells in value.values()):
        return _of_columns(value, name)
    keys = [list(cells) for cells in value.values() if isinstance(cells, dict)]
    if value and len(keys) == len(value) and all(set(one) == set(keys[0]) for one in keys):
        return [{column: cells[key] for column, cells in value.items()} for key in keys[0]]
    return [value]


def _of_columns(value: Mapping[str, list[Any]], name: str) -> list[Any]:
    if len({len(cells) for cells in value.values()}) > 1:
        raise InvalidData(f"{name}: the columns have different numbers of rows")
    return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
