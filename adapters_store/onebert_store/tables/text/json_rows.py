"""Reads rows of JSON one by one: JSON lines, an array, objects one after another, or one object of columns."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from io import TextIOWrapper
from itertools import chain, islice
from typing import Any

from onebert_store.errors import InvalidData
from onebert_store.tables.table import places_in
from onebert_store.tables.text.lines import MAX_ROW_CHARACTERS, numbered_lines

MAX_WHOLE = 2**28  # characters of a file with one object, which is held whole

_CHUNK = 2**20  # characters
_BLANKS = re.compile(r"[ \t\r\n]*")
_LONGEST_WORD = 16  # characters of a word or an escape that the end of the buffer may cut
NO_OBJECT = "not a JSON object"


def parse_json(text: str) -> Any:
    """Decodes JSON; raises ValueError if the text is not JSON or nested too deeply."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def json_lines(stream: TextIOWrapper, name: str) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Yields line numbers and objects of JSON lines; skips blank lines; None is a line that is not an object."""
    return ((number, _object(line)) for number, line in numbered_lines(stream, name))


def _object(line: str) -> dict[str, Any] | None:
    try:
        row = parse_json(line)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None


class JsonRows(Iterator[tuple[int, dict[str, Any] | None]]):
    """Iterates over numbers, from 1, and objects of a JSON file; None is an element that is not an object.

    An array, or objects one after another, are read as a stream. A single object is read whole: `{"data": [rows]}`,
    lists or mappings by column (as pandas writes a DataFrame), or one row. `doubt` names the data beside the rows that
    is left out; else it is empty.
    """

    def __init__(self, stream: TextIOWrapper, name: str) -> None:
        values, self.doubt = _Values(stream, name), ""
        if values.next_character() == "[":
            self._rows = _numbered(values.elements())
            return
        rows = values.side_by_side()
        begun = list(islice(rows, 2))
        if len(begun) > 1:
            self._rows = _numbered(chain(begun, rows))
            return
        first = begun[0] if begun else None
        if not isinstance(first, dict):
            raise InvalidData(f"{name} has neither an array of JSON objects nor objects one after another")
        key, values_of = _rows_of(first, name)
        self._rows = _numbered(values_of)
        if ignored := ", ".join(other[:40] for other in first if key and other != key):
            self.doubt = f"{name}: the rows are those of {key[:40]}; other keys are ignored: {ignored[:200]}"

    def __next__(self) -> tuple[int, dict[str, Any] | None]:
        number, row = next(self._rows)
        return number, row if isinstance(row, dict) else None


def _numbered(values: Iterable[Any]) -> Iterator[tuple[int, Any]]:
    return ((number, row) for number, value in enumerate(values, start=1) for row in _rows(value))


def _rows(value: Any) -> list[Any]:
    """Returns the rows of spaCy's training data, `[text, {"entities": …}]` or a document with paragraphs; else it."""
    match value:
        case [str(text), {**labels}, *_]:
            return [{**labels, "text": text}]
        case {"paragraphs": [{"sentences": _}, *_] as paragraphs}:
            return [row for paragraph in paragraphs for row in _rows(paragraph)]
        case {"raw": str(text), "entities": list(), "sentences": list()}:
            return [{**value, "text": text}]
    return [value]


class _Values:
    def __init__(self, stream: TextIOWrapper, name: str) -> None:
        self._stream, self._name = stream, name
        self._buffer, self._at, self._line, self._ended = "", 0, 1, False
        self._decoder = json.JSONDecoder()

    def elements(self) -> Iterator[Any]:
        self._take("[")
        while self.next_character() != "]":
            yield self._value(MAX_ROW_CHARACTERS)
            if self.next_character() != "]":
                self._take(",")
                if self.next_character() == "]":
                    self._refuse("a value is missing")
        self._take("]")
        if self.next_character():
            self._refuse("something follows the array")

    def side_by_side(self) -> Iterator[Any]:
        while self.next_character():
            yield self._value(MAX_WHOLE)

    def next_character(self) -> str:
        blank = 0
        while True:
            start, self._at = self._at, _BLANKS.match(self._buffer, self._at).end()  # type: ignore[union-attr]
            self._line += self._buffer.count("\n", start, self._at)
            blank += self._at - start
            if self._at < len(self._buffer):
                return self._buffer[self._at]
            if self._ended:
                return ""
            if blank > MAX_ROW_CHARACTERS:
                self._refuse(f"more than {MAX_ROW_CHARACTERS:,} blanks stand between values")
            self._read_more()

    def _take(self, character: str) -> None:
        if self.next_character() != character:
            self._refuse(f"{character} is missing")
        self._at += 1

    def _value(self, limit: int) -> Any:
        self.next_character()
        while True:
            try:
                value, end = self._decoder.raw_decode(self._buffer, self._at)
            except RecursionError:
                self._refuse("it is nested too deeply")
            except json.JSONDecodeError as error:
                if self._ended or not self._may_go_on(error):
                    self._line += self._buffer.count("\n", self._at, error.pos)
                    self._refuse(error.msg)
            except ValueError:
                # Python's limit on digits; the error does not tell where the number stands.
                self._refuse("a number is too long")
            else:
                # A value at the end of the buffer may continue behind it.
                if end < len(self._buffer) or self._ended:
                    self._line += self._buffer.count("\n", self._at, end)
                    self._at = end
                    return value
            if len(self._buffer) - self._at > limit:
                self._refuse(
                    f"a value has more than {limit:,} characters; JSON lines (.jsonl) may have any number of rows"
                )
            self._read_more()

    def _may_go_on(self, error: json.JSONDecodeError) -> bool:
        """True if the error may come from the end of the buffer: an open string, or an error near the end."""
        return error.msg.startswith("Unterminated string") or error.pos > len(self._buffer) - _LONGEST_WORD

    def _read_more(self) -> None:
        """Doubles the buffer, so that a long value is not parsed again and again."""
        chunk = self._stream.read(max(_CHUNK, len(self._buffer) - self._at))
        self._ended = not chunk
        self._buffer, self._at = self._buffer[self._at :] + chunk, 0

    def _refuse(self, why: str) -> None:
        raise InvalidData(f"{self._name} line {self._line} is not JSON: {why[:100]}")


def _rows_of(value: Mapping[str, Any], name: str) -> tuple[str, list[Any]]:
    """Returns a single object's rows, and the key of the rows if they are a list of objects."""
    columns, data = value.get("columns"), value.get("data")
    if isinstance(columns, list) and isinstance(data, list) and all(isinstance(row, list) for row in data):
        return "", _of_cells(list(map(str, columns)), data, name)
    lists = {column: cells for column, cells in value.items() if isinstance(cells, list)}
    tables = [column for column, cells in lists.items() if any(isinstance(_rows(cell)[0], dict) for cell in cells)]
    # Data beside a table without rows is not a row.
    empty = data == [] and not tables and len(lists) < len(value)
    if empty or "data" in tables:
        return "data", _questions(lists["data"])
    # A column may hold objects, too; then the other columns have equally many cells.
    alone = len(lists) < len(value) or sum(map(bool, lists.values())) == 1
    if len(tables) == 1 and (alone or isinstance(lists[tables[0]][0], list)):
        return tables[0], lists[tables[0]]
    if value and len(lists) == len(value):
        return "", _of_columns(value, name)
    keys = [list(cells) for cells in value.values() if isinstance(cells, dict)]
    if value and len(keys) == len(value) and all(set(row_keys) == set(keys[0]) for row_keys in keys):
        return "", [{column: cells[key] for column, cells in value.items()} for key in keys[0]]
    return "", [value]


def _questions(articles: list[Any]) -> list[Any]:
    try:
        return [
            {"title": article.get("title"), "context": paragraph["context"], **question}
            for article in articles
            for paragraph in article["paragraphs"]
            for question in paragraph["qas"]
        ]
    except (AttributeError, KeyError, TypeError):
        return articles


def _of_cells(columns: list[str], rows: list[list[Any]], name: str) -> list[Any]:
    if len(set(columns)) != len(columns):
        raise InvalidData(f"{name}: two columns have one name")
    if bad := [number for number, cells in enumerate(rows, start=1) if len(cells) != len(columns)]:
        where = places_in(name, "row", bad).named(range(len(bad)))
        raise InvalidData(f"{where}: not as many cells as there are columns, {len(columns)}")
    return [dict(zip(columns, cells, strict=True)) for cells in rows]


def _of_columns(value: Mapping[str, list[Any]], name: str) -> list[Any]:
    if len({len(cells) for cells in value.values()}) > 1:
        raise InvalidData(f"{name}: the columns have different numbers of rows")
    return [dict(zip(value, row, strict=True)) for row in zip(*value.values(), strict=True)]
