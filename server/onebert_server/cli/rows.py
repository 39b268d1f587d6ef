"""The rows of a table with what is asked of each, read as `onebert train` reads them and one by one."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from onebert_store.errors import InvalidData, InvalidInput

if TYPE_CHECKING:
    import pyarrow

    from onebert_server.client import Input
    from onebert_store.tables.records import Record

NO_TEXT = "the text is empty or not a text"


@dataclass(frozen=True)
class Row:
    """A row of a table.

    Attributes:
        input: its text or pair; None where it has none.
        place: `line` or `row` with its number, from 1.
        cells: all of it, by column.
        fault: why there is no input; else empty.
    """

    input: "Input | None"
    place: Mapping[str, int]
    cells: Mapping[str, Any]
    fault: str = ""


@dataclass
class Rows(Iterator[Row]):
    """The rows of a table in their order.

    Attributes:
        columns: names of all columns.
        id: the name of the column `id`, however it is spelled; None where there is none.
        schema: types of the columns, where the file has types.
        notes: what a user should know of how the file is read.
        rows: those that are left.
    """

    columns: Sequence[str]
    id: str | None
    schema: "pyarrow.Schema | None"
    notes: Sequence[str]
    rows: Iterator[Row]

    def __next__(self) -> Row:
        return next(self.rows)


@contextmanager
def open_rows(path: Path, columns: tuple[str | None, str | None], encoding: str | None, pair: bool) -> Iterator[Rows]:
    """The rows of a table.

    Args:
        path: the file.
        columns: those of the text and of its pair; None is found by name.
        encoding: of a text file without a byte order mark; None finds it.
        pair: every input is a pair.

    Raises:
        InvalidInput: the file cannot be read.
        InvalidData: the file is no table, or has no column of texts; also while rows are taken.
    """
    from onebert_store.tables.columns import Columns, find_texts, named  # noqa: PLC0415 - slow to import
    from onebert_store.tables.file import file_at  # noqa: PLC0415
    from onebert_store.tables.records import open_records  # noqa: PLC0415
    from onebert_store.tables.sample import sample_of  # noqa: PLC0415

    if not path.is_file():
        raise InvalidInput("the file of texts cannot be read")
    sample = sample_of(file_at(path), encoding)
    texts = find_texts(sample, Columns(*columns))
    if texts is None or (pair and len(texts) == 1):
        there = ", ".join(name[:40] for name in list(sample)[:10])
        several, one = (
            "two columns of texts; name them with --text and --text-pair",
            "column of texts; name it with --text",
        )
        raise InvalidData(f"{path.name} has no {several if pair else one} (the columns are {there})")
    with open_records(file_at(path), encoding) as records:
        rows = (_row(record, texts, pair, records.unit) for record in records)
        yield Rows(list(sample), named(sample, "id"), records.schema, records.notes, rows)


def _row(record: "Record", texts: Sequence[str], pair: bool, unit: str) -> Row:
    from onebert_store.tables.table import cell_of  # noqa: PLC0415

    cells = [cell_of(record.cells, name) for name in texts]
    # Where pairs are not asked for, the second text of some rows may be missing.
    if len(cells) > 1 and cells[1] in (None, "") and not pair:
        del cells[1]
    place = {unit: record.number}
    if record.fault or not all(isinstance(cell, str) and cell.strip() for cell in cells):
        return Row(None, place, record.cells, record.fault or NO_TEXT)
    return Row(cells[0] if len(cells) == 1 else (cells[0], cells[1]), place, record.cells)
