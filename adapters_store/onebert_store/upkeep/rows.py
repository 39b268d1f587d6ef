"""Copies the rows of tables from one database to another."""

from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Any

from sqlalchemy import Connection, Table, delete, insert, select

from onebert_store.samples.reading import rows_of

_ROWS_TOGETHER = 500


def replace_rows(source: Connection, target: Connection, tables: Iterable[Table]) -> Counter[Table | None]:
    """Makes the target's rows those of the source; returns how many each table has, under None those left out.

    A row is left out if one of its values is not of its column's type.
    """
    tables = list(tables)
    for table in reversed(tables):
        target.execute(delete(table))
    counts = Counter[Table | None]()
    for table in tables:
        result = source.execute(select(table).execution_options(yield_per=_ROWS_TOGETHER))
        for rows in _batches(rows_of(result, lambda row: row._asdict())):
            readable = [row for row in rows if row is not None]
            if readable:
                target.execute(insert(table), readable)
            counts.update({table: len(readable), None: len(rows) - len(readable)})
    return counts


def _batches(rows: Iterator[dict[str, Any] | None]) -> Iterator[list[dict[str, Any] | None]]:
    while batch := [*islice(rows, _ROWS_TOGETHER)]:
        yield batch
