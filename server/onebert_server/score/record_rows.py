"""Rows of any file but Parquet, which are read from their beginning, also where the first are only passed over."""

import json
from collections.abc import Callable
from typing import Any

import pyarrow

from onebert_encoder.text.tokens import Text
from onebert_server.score.stream import WINDOW_BYTES, Chosen, Rows, checked, numbered
from onebert_store.errors import InvalidData
from onebert_store.tables.records import Record, Records
from onebert_store.tables.table import Table, cell_of
from onebert_store.tables.text.unicode import escaped


class RecordRows:
    """See Stream; what is kept of a row is written as text: a CSV says no more of its cells, and JSON may change.

    Args:
        records: the file's rows.
        sample: gives a table with its columns.
        read: how much of the file is read, from 0 to 1.
    """

    def __init__(self, records: Records, sample: Callable[[], Table], read: Callable[[], float]) -> None:
        self.row, self.notes = 0, records.notes
        self._records, self._sample, self._read = records, sample, read

    @property
    def share(self) -> float:
        """See Stream."""
        return self._read()

    def sample(self) -> Table:
        """See Stream."""
        # A header says it all; of JSON and types the whole file does, which a bucket would have to send again.
        if self._records.names is not None and self._records.schema is None:
            return Table({name: [""] for name in self._records.names}, self._records.name)
        return self._sample()

    def choose(self, chosen: Chosen) -> None:
        """See Stream."""
        self._chosen = chosen
        names = self._records.names
        # Of JSON any row may have what others lack; of a column `a.b`, what is in its cells.
        for name in (*chosen.texts, *chosen.ids) if names is not None else ():
            if not {name, name.partition(".")[0]} & {*(names or ())}:
                raise InvalidData(f"{self._records.name} has no column {name}")

    def skip(self, rows: int) -> None:
        """See Stream."""
        while rows and self._next() is not None:
            rows -= 1

    def take(self, most: int) -> Rows:
        """See Stream."""
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
