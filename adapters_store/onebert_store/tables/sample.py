"""Reads a file's columns without keeping its rows, to find the text columns."""

from collections.abc import Mapping
from typing import Any

import pyarrow

from onebert_store.tables.file import File
from onebert_store.tables.records import open_records
from onebert_store.tables.table import Table


def sample_of(file: File, encoding: str | None = None) -> Table:
    """Makes a table of one row with all columns and fields of a file; reads all JSON rows, since their keys differ."""
    with open_records(file, encoding) as records:
        if records.schema is not None:
            return sample_of_schema(records.schema, file.name)
        merged: dict[str, Any] = dict.fromkeys(records.names or (), "")
        for record in records if records.names is None else ():
            _merge(merged, record.cells)
    return Table({name: [cell] for name, cell in merged.items()}, file.name)


def sample_of_schema(schema: pyarrow.Schema, origin: str) -> Table:
    """Makes a table of one row with every column of a schema, and every field of its structs."""
    return Table({field.name: [_cell_of(field.type)] for field in schema}, origin)


def _cell_of(kind: pyarrow.DataType) -> Any:
    return {field.name: _cell_of(field.type) for field in kind} if pyarrow.types.is_struct(kind) else ""


def _merge(merged: dict[str, Any], cells: Mapping[str, Any]) -> None:
    # No recursion: JSON may be nested deeper than Python's call stack.
    pending = [(merged, cells)]
    while pending:
        into, some = pending.pop()
        for name, cell in some.items():
            if not isinstance(cell, dict):
                into.setdefault(name, "")
                continue
            if not isinstance(into.get(name), dict):
                into[name] = {}
            pending.append((into[name], cell))
