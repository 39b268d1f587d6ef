"""Reads the labeled rows that a gate is pinned to."""

from typing import Any

from onebert_encoder.text.tokens import named_halves
from onebert_server.cli.compare.labeled import labeled_rows
from onebert_server.extensions.gate.rules import Gate, PinnedRow
from onebert_store.errors import InvalidData
from onebert_store.file.manifest import Manifest
from onebert_store.tables.columns import Columns
from onebert_store.tables.tables import read_source

_LONGEST_CELL = 256


def pinned_rows(data: str, gate: Gate, manifest: Manifest) -> list[PinnedRow]:
    """The rows of the test split (else validation), as `onebert diff` reads them; raises InvalidData."""
    columns = gate.slices.columns if gate.slices else ()
    rows = labeled_rows(read_source(data), None, Columns(), [manifest], columns)
    pinned = []
    for row in rows:
        if row.right is None:
            unit, number = next(iter(row.place.items()))
            raise InvalidData(f"{unit} {number} has no label: a gate needs one in each row")
        label: Any = list(row.right) if isinstance(row.right, tuple) else row.right
        cells = {name: cell[:_LONGEST_CELL] for name, cell in row.cells.items()}
        pinned.append(PinnedRow(**named_halves(row.input), label=label, slices=cells))
    return pinned
