"""Rows of a CSV or of JSON lines, which are read from their beginning, also where the first are only passed over."""

import json
from collections import deque
from collections.abc import Iterator
from io import TextIOWrapper
from typing import Any

import pyarrow

from onebert_encoder.text.tokens import Text
from onebert_server.score.stream import WINDOW_BYTES, Chosen, Rows, checked, numbered
from onebert_store.errors import InvalidData
from onebert_store.tables.lines import CsvRows, json_rows
from onebert_store.tables.table import Table, field

# Lines of JSON in which columns are looked for: an object may lack a key that others have.
_SAMPLED = 100


class LineRows:
    """See Stream; what is kept of a row is written as text: a CSV says no more of its cells, and JSON may change.

    Args:
        text: the file's.
        file: its bytes, whose position says how much of it is read.
        size: of the file in bytes.
        name: of the file; one that begins with `.jsonl` behind its stem has JSON lines.
    """

    def __init__(self, text: TextIOWrapper, file: pyarrow.NativeFile, size: int, name: str) -> None:
        self.row = 0
        self._file, self._size, self._name = file, size, name
        self._sampled: deque[tuple[int, Any]] = deque()
        self._header: list[str] | None = None
        self._rows: Iterator[tuple[int, Any]] = json_rows(text)
        if not name.lower().removesuffix(".gz").endswith(".jsonl"):
            self._rows = rows = CsvRows(text, name)
            self._header = rows.header

    @property
    def share(self) -> float:
        """See Stream."""
        return min(self._file.tell() / self._size, 1.0) if self._size else 1.0

    def sample(self) -> Table:
        """See Stream."""
        if self._header is not None:
            return Table({name: [""] for name in self._header}, self._name)
        while len(self._sampled) < _SAMPLED and (found := next(self._rows, None)) is not None:
            self._sampled.append(found)
        objects = [row for _, row in self._sampled if row is not None]
        names = dict.fromkeys(name for row in objects for name in row)
        return Table({name: [row.get(name) for row in objects] for name in names}, self._name)

    def choose(self, chosen: Chosen) -> None:
        """See Stream."""
        self._chosen = chosen
        # Of JSON lines any may have what others lack.
        for name in (*chosen.texts, *chosen.ids) if self._header is not None else ():
            if name not in (self._header or ()):
                raise InvalidData(f"{self._name} has no column {name}")

    def skip(self, rows: int) -> None:
        """See Stream."""
        while rows and self._next() is not None:
            rows -= 1

    def take(self, most: int) -> Rows:
        """See Stream."""
        first, characters = self.row, 0
        read: list[tuple[Text | None, str | None]] = []
        ids: list[list[str | None]] = []
        while len(read) < most and characters < WINDOW_BYTES and (found := self._next()) is not None:
            row, why = self._as_object(*found)
            cells = [_cell(row, name) for name in self._chosen.texts]
            read.append((None, why) if why else checked(cells))
            ids.append([_as_text(_cell(row, name)) for name in self._chosen.ids])
            characters += sum(len(cell) for cell in (*cells, *ids[-1]) if isinstance(cell, str))
        texts, errors = [text for text, _ in read], [error for _, error in read]
        if not self._chosen.ids:
            return Rows(numbered(first, len(read)), texts, errors)
        columns = [pyarrow.array([row[i] for row in ids], pyarrow.string()) for i in range(len(self._chosen.ids))]
        return Rows(pyarrow.table(columns, names=list(self._chosen.ids)), texts, errors)

    def _next(self) -> tuple[int, Any] | None:
        found = self._sampled.popleft() if self._sampled else next(self._rows, None)
        self.row += found is not None
        return found

    def _as_object(self, line: int, row: Any) -> tuple[dict[str, Any], str | None]:
        """A row as names and cells, or why it is none."""
        if self._header is None:
            return ({}, f"line {line} is not a JSON object") if row is None else (row, None)
        if len(row) != len(self._header):
            return {}, f"line {line}: {len(row)} cells under {len(self._header)} columns"
        return dict(zip(self._header, row, strict=True)), None


def _cell(row: dict[str, Any], name: str) -> Any:
    column, _, path = name.partition(".")
    return field(row.get(column), path) if path and name not in row else row.get(name)


def _as_text(cell: Any) -> str | None:
    if cell is None:
        return None
    text = cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False)
    # JSON may have half of a surrogate pair, which Parquet has not.
    return text if text.isascii() else text.encode(errors="replace").decode()
