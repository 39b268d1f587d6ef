"""Copies the rows of tables from one database to another."""

from collections import Counter
from collections.abc import Sequence
from itertools import islice

from sqlalchemy import Connection, Row, Table, delete, insert, select

from onebert_store.samples.reading import rows_of

DAMAGED = "damaged"
_ROWS_TOGETHER = 500


def replace_rows(source: Connection, target: Connection, tables: Sequence[Table]) -> Counter[str]:
    """Makes the target's rows those of the source; counts them by table, and the `DAMAGED` ones.

    A damaged row has a value that is not of its column's type; it is left out.
    """
    for table in reversed(tables):
        target.execute(delete(table))
    counts = Counter[str]()
    for table in tables:
        result = source.execute(select(table).execution_options(yield_per=_ROWS_TOGETHER))
        rows = rows_of(result, Row._asdict)
        while batch := [*islice(rows, _ROWS_TOGETHER)]:
            readable = [row for row in batch if row is not None]
            if readable:
                target.execute(insert(table), readable)
            counts.update({table.name: len(readable), DAMAGED: len(batch) - len(readable)})
    return counts
