"""Reads rows of every format but Parquet; the file is read from its beginning even when rows are skipped."""

import json
from contextlib import ExitStack
from dataclasses import replace
from io import BufferedReader
from typing import Any

import pyarrow

from onebert_encoder.text.tokens import Text
from onebert_server.score.sources import Source
from onebert_server.score.stream import WINDOW_BYTES, Chosen, Rows, checked, numbered
from onebert_store.errors import InvalidData
from onebert_store.tables.file import File
from onebert_store.tables.records import Record, open_records
from onebert_store.tables.sample import sample_of
from onebert_store.tables.table import Table, cell_of
from onebert_store.tables.text.unicode import escaped


class RecordRows:
    """A stream of records. Kept cells are written as text: CSV has no types, and JSON types may change between rows."""

    def __init__(self, source: Source, encoding: str | None, opened: ExitStack) -> None:
        self._source, self._encoding = source, encoding
        self._file = File(source.name, source.buffered, source.sheet)
        self._records = opened.enter_context(open_records(replace(self._file, open=self._open), encoding))
        self.row, self.notes = 0, self._records.notes

    def _open(self) -> BufferedReader:
        self._latest = self._source.buffered()
        return self._latest

    @property
    def share(self) -> float:
        """By the bytes of the file, which is opened several times."""
        return min(self._latest.raw.tell() / self._source.size, 1.0) if self._source.size else 1.0

    def sample(self) -> Table:
        # A header is enough; JSON and typed files have to be read whole, which downloads them again from a bucket.
        if self._records.names is not None and self._records.schema is None:
            return Table({name: [""] for name in self._records.names}, self._records.name)
        return sample_of(self._file, self._encoding)

    def choose(self, chosen: Chosen) -> None:
        self._chosen = chosen
        names = self._records.names
        # Only headers can be checked: a JSON row may have keys that others lack. For `a.b`, column `a` is enough.
        for name in (*chosen.texts, *chosen.ids) if names is not None else ():
            if not {name, name.partition(".")[0]} & {*(names or ())}:
                raise InvalidData(f"{self._records.name} has no column {name}")

    def skip(self, rows: int) -> None:
        while rows and self._next() is not None:
            rows -= 1

    def take(self, most: int) -> Rows:
        first, characters = self.row, 0
        read: list[tuple[Text | None, str | None]] = []
        ids: list[list[str | None]] = []
        while len(read) < most and characters < WINDOW_BYTES and (record := self._next()) is not None:
            cells = [cell_of(record.cells, name) for name in self._chosen.texts]
            why = f"{self._records.unit} {record.number}: {record.fault}"
            read.append((None, why) if record.fault else checked(cells))
            ids.append([_as_text(cell_of(record.cells, name)) for name in self._chosen.ids])
            characters += sum(len(cell) for cell in (*cells, *ids[-1]) if isinstance(cell, str))
        texts, errors = [text for text, _ in read], [error for _, error in read]
        if not self._chosen.ids:
            return Rows(numbered(first, len(read)), texts, errors)
        columns = [pyarrow.array([row[i] for row in ids], pyarrow.string()) for i in range(len(self._chosen.ids))]
        return Rows(pyarrow.table(columns, names=list(self._chosen.ids)), texts, errors)

    def _next(self) -> Record | None:
        found = next(self._records, None)
        self.row += found is not None
        return found


def _as_text(cell: Any) -> str | None:
    if cell is None:
        return None
    text = cell if isinstance(cell, str) else json.dumps(cell, ensure_ascii=False, default=str)
    return escaped(text)
