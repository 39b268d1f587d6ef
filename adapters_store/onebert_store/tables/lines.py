"""Rows of text files one by one, as they are read: CSV and TSV as spreadsheets write them, and JSON lines."""

import codecs
import csv
import gzip
import json
import re
from collections.abc import Iterator
from io import BufferedReader, TextIOWrapper
from itertools import chain
from typing import Any

from onebert_store.errors import InvalidData, InvalidSettings

MAX_CELL_CHARACTERS = 16 * 2**20

# UTF-32 comes first: its byte order mark begins with that of UTF-16.
_MARKS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
    (codecs.BOM_UTF8, "utf-8-sig"),
)
_SEPARATOR_LINE = re.compile(r"sep=(.)\s*")  # Excel's first line, which is no row


def parse_json(text: str) -> Any:
    """Decodes JSON.

    Raises:
        ValueError: the text is not JSON, or is nested too deeply.
    """
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def check_encoding(encoding: str) -> None:
    """Refuses an encoding that does not exist.

    Raises:
        InvalidSettings: there is no such encoding.
    """
    try:
        "".encode(encoding)
    except (LookupError, UnicodeError, ValueError):
        raise InvalidSettings(f"there is no encoding {encoding[:40]!r}; utf-8, utf-16 and cp1252 are some") from None


def open_text(stream: BufferedReader, name: str, encoding: str) -> TextIOWrapper:
    """The text of a file of this name, unpacked where the name ends in .gz; closing it closes the stream.

    Args:
        stream: the file's bytes.
        name: of the file.
        encoding: of a text without a byte order mark.
    """
    try:
        unpacked: Any = _Unpacked(stream) if name.lower().endswith(".gz") else stream
        head = unpacked.peek(4)
        marked = next((name for mark, name in _MARKS if head.startswith(mark)), encoding)
    except BaseException:
        stream.close()
        raise
    return TextIOWrapper(unpacked, encoding=marked, newline="")


class _Unpacked(gzip.GzipFile):
    """Closes what it reads, too."""

    def __init__(self, packed: BufferedReader) -> None:
        self._packed = packed
        super().__init__(fileobj=packed)

    def close(self) -> None:
        super().close()
        self._packed.close()


class CsvRows(Iterator[tuple[int, list[str]]]):
    """Line numbers and cells of a CSV, blank rows left out; a row may have more or fewer cells than the header.

    Args:
        stream: the text.
        name: of the file; the usual character between columns is a tab where it ends in .tsv.

    Attributes:
        header: names of the columns.

    Raises:
        InvalidData: a quote is left open, text follows a closing quote, or two columns have one name.
    """

    def __init__(self, stream: TextIOWrapper, name: str) -> None:
        csv.field_size_limit(MAX_CELL_CHARACTERS)
        self._name, self._before = name, 0
        first = stream.readline()
        if separator := _SEPARATOR_LINE.fullmatch(first):
            first, self._before, delimiter = stream.readline(), 1, separator[1]
        else:
            delimiter = _delimiter(first, "\t" if name.lower().removesuffix(".gz").endswith(".tsv") else ",")
        self._reader = csv.reader(chain([first], stream), delimiter=delimiter, strict=True)
        self.header = [cell.strip() for cell in self._read() or []]
        if len(set(self.header)) != len(self.header):
            raise InvalidData(f"{name}: two columns have one name")

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
        try:
            return next(self._reader, None)
        except csv.Error:
            raise InvalidData(
                f"{self._name} line {line} is not CSV: a quote is left open, or text follows a closing quote"
            ) from None


def json_rows(stream: TextIOWrapper) -> Iterator[tuple[int, dict[str, Any] | None]]:
    """Line numbers and objects of JSON lines, blank lines left out; None is a line that is not an object."""
    for number, line in enumerate(stream, start=1):
        if line.strip():
            try:
                row = parse_json(line)
            except ValueError:
                row = None
            yield number, row if isinstance(row, dict) else None


def _delimiter(header: str, usual: str) -> str:
    """The character between columns: the usual one, unless another splits a header that the usual one leaves whole."""

    def columns(delimiter: str) -> int:
        return len(next(csv.reader([header], delimiter=delimiter), []))

    return usual if columns(usual) > 1 else max((usual, ",", ";", "\t"), key=columns)
