"""Reads whole files into tables."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from onebert_store.errors import InvalidData
from onebert_store.tables.file import File, file_at
from onebert_store.tables.places import Place, join_places, places_in, said_of_rows
from onebert_store.tables.records import Records, open_records
from onebert_store.tables.table import Table

# Limits of empty cells: per existing cell, and in any case. Otherwise a few bytes of a file could become any number of
# cells.
_EMPTY_EACH, _EMPTY = 64, 2**24


class Fault(NamedTuple):
    """A bad row: its place, and the reason."""

    place: Place
    what: str


@dataclass
class Faults:
    """The bad rows of files, and in `broken` the reasons why files cannot be read to their end."""

    rows: list[Fault] = field(default_factory=list)
    broken: list[str] = field(default_factory=list)


def read_file(file: Path | File, encoding: str | None = None, faults: Faults | None = None) -> Table:
    """Reads a file by the ending of its name; `encoding` is for text files without a byte order mark, None finds it.

    `faults` collects bad rows and files that break off, which are left out of the table; None rejects them.
    """
    origin = file if isinstance(file, File) else file_at(file)
    with open_records(origin, encoding) as records:
        columns: dict[str, list[Any]] = {name: [] for name in records.names or ()}
        numbers, bad = list[int](), dict[str, list[int]]()
        try:
            _fill(columns, numbers, bad, records)
        except InvalidData as error:
            if faults is None or not (numbers or bad):
                raise
            faults.broken.append(error.detail)
    places_of = partial(places_in, origin.name, records.unit)
    if faults is None and bad:
        raise InvalidData(said_of_rows(bad, lambda rows: places_of(rows).named(range(len(rows)))))
    if faults is not None:
        faults.rows += [
            Fault(Place(origin.name, records.unit, row), what) for what, rows in bad.items() for row in rows
        ]
    if not numbers:
        raise InvalidData(f"{origin.name} has no rows" + (" that can be read" if bad else ""))
    separated = records.delimiter and f"{records.delimiter} between columns"
    kind = ", ".join(filter(None, (records.name, records.encoding, separated)))
    return Table(columns, origin.name, places_of(numbers), records.label_names, records.notes, (kind,))


def _fill(columns: dict[str, list[Any]], numbers: list[int], bad: dict[str, list[int]], records: Records) -> None:
    empty = there = 0
    # An empty cell of a CSV or a sheet is an empty text; JSON and Parquet leave it missing.
    blank = "" if records.names is not None and records.schema is None else None
    for number, cells, fault in records:
        if fault:
            bad.setdefault(fault, []).append(number)
            continue
        if not columns.keys() >= cells.keys():
            # A missing key becomes an empty cell, so that an error can name its row.
            missing = [name for name in cells if name not in columns]
            columns.update({name: [None] * len(numbers) for name in missing})
            empty += len(missing) * len(numbers)
        for name, column in columns.items():
            cell = cells.get(name)
            column.append(blank if cell is None else cell)
        numbers.append(number)
        there += len(cells)
        empty += len(columns) - len(cells)
        if empty > max(_EMPTY, there * _EMPTY_EACH):
            raise InvalidData(f"{records.name} has {len(columns):,} columns of which nearly all cells are empty")


def join_tables(tables: Sequence[Table], origin: str) -> Table:
    """Concatenates tables; a column that a table lacks is empty in its rows."""
    if len(tables) == 1:
        return tables[0]
    names = dict.fromkeys(name for table in tables for name in table)
    columns = {
        name: [cell for table in tables for cell in (table[name] if name in table else [None] * table.rows)]
        for name in names
    }
    label_names = {column: found for table in tables for column, found in table.label_names.items()}
    notes = [note for table in tables for note in table.notes]
    kinds = [kind for table in tables for kind in table.kinds]
    return Table(columns, origin, join_places([table.places for table in tables]), label_names, notes, kinds)
