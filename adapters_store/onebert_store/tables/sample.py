"""The columns of a file, for finding those that hold what, without its rows in memory."""

from collections.abc import Mapping
from typing import Any

import pyarrow

from onebert_store.tables.file import File
from onebert_store.tables.records import open_records
from onebert_store.tables.table import Table


def sample_of(file: File, encoding: str | None = None) -> Table:
    """A table of one row with every column of a file, and every field of the objects in them.

    Any object of a JSON file may have what others lack: all of them are looked at, so that their order does not matter.

    Args:
        file: the file.
        encoding: of a text file without a byte order mark; None finds it.

    Raises:
        InvalidData: the file is not readable, or not what its name says.
        InvalidSettings: there is no such encoding.
    """
    with open_records(file, encoding) as records:
        if records.schema is not None:
            return sample_of_schema(records.schema, file.name)
        found: dict[str, Any] = dict.fromkeys(records.names or (), "")
        for record in records if records.names is None else ():
            _merge(found, record.cells)
    return Table({name: [cell] for name, cell in found.items()}, file.name)


def sample_of_schema(schema: pyarrow.Schema, origin: str) -> Table:
    """A table of one row with every column of a schema, and every field of the objects in them."""
    return Table({field.name: [_cell_of(field.type)] for field in schema}, origin)


def _cell_of(kind: pyarrow.DataType) -> Any:
    return {field.name: _cell_of(field.type) for field in kind} if pyarrow.types.is_struct(kind) else ""


def _merge(found: dict[str, Any], cells: Mapping[str, Any]) -> None:
    # No recursion: JSON may be nested deeper than calls may.
    left = [(found, cells)]
    while left:
        into, some = left.pop()
        for name, cell in some.items():
            if not isinstance(cell, dict):
                into.setdefault(name, "")
                continue
            if not isinstance(into.get(name), dict):
                into[name] = {}
            left.append((into[name], cell))
