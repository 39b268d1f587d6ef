"""Reads a table's rows one by one, as `onebert train` reads them."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from onebert_server.client import Input
from onebert_store.errors import InvalidData, InvalidInput

if TYPE_CHECKING:
    import pyarrow

    from onebert_store.tables.records import Record


class Reading(NamedTuple):
    """The user's options for reading a table; None finds columns and encoding by itself, and takes the first sheet."""

    text: str | None = None
    text_pair: str | None = None
    encoding: str | None = None
    sheet: str | None = None


@dataclass(frozen=True)
class Row:
    """A row of a table: its place (`line` or `row`, from 1), its cells, and its input, or the fault why it has none."""

    input: Input | None
    place: Mapping[str, int]
    cells: Mapping[str, Any]
    fault: str = ""


@dataclass
class Rows(Iterator[Row]):
    """The remaining rows of a table, with its columns and, if the file has types, a schema.

    `id` is the column `id` in the table's own spelling. `notes` tell the user how the file is read.
    """

    columns: Sequence[str]
    id: str | None
    schema: "pyarrow.Schema | None"
    notes: Sequence[str]
    rows: Iterator[Row]

    def __next__(self) -> Row:
        return next(self.rows)


@contextmanager
def open_rows(path: Path, reading: Reading, pair: bool) -> Iterator[Rows]:
    """The rows of a table; `pair` requires pairs. Raises InvalidInput or InvalidData, also while rows are taken."""
    from onebert_store.tables.columns import Columns, named, require_texts  # noqa: PLC0415 - slow to import
    from onebert_store.tables.file import file_at  # noqa: PLC0415
    from onebert_store.tables.records import open_records  # noqa: PLC0415
    from onebert_store.tables.sample import sample_of  # noqa: PLC0415

    if not path.is_file():
        raise InvalidInput("the file of texts cannot be read")
    file = file_at(path, reading.sheet)
    sample = sample_of(file, reading.encoding)
    texts = require_texts(sample, Columns(reading.text, reading.text_pair))
    if pair and len(texts) == 1:
        raise InvalidData(f"{path.name} has no two columns of texts; name them with --text and --text-pair")
    with open_records(file, reading.encoding) as records:
        found = (_row(record, texts, pair, records.unit) for record in records)
        yield Rows(list(sample), named(sample, "id"), records.schema, records.notes, found)


def _row(record: "Record", texts: Sequence[str], pair: bool, unit: str) -> Row:
    from onebert_store.tables.table import cell_of  # noqa: PLC0415
    from onebert_store.tables.text.unicode import text_fault  # noqa: PLC0415

    cells = [cell_of(record.cells, name) for name in texts]
    # Unless pairs are required, a row may lack the second text.
    if len(cells) > 1 and cells[1] in (None, "") and not pair:
        del cells[1]
    place = {unit: record.number}
    if fault := record.fault or text_fault(*cells):
        return Row(None, place, record.cells, fault)
    return Row(cells[0] if len(cells) == 1 else (cells[0], cells[1]), place, record.cells)
