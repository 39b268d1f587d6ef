"""Reads rows of samples and feedback as records, and tells the rows that something else has damaged."""

import logging
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, TypeVar

from pydantic import TypeAdapter
from sqlalchemy import ColumnElement, Connection, Result, Row, Select, Table, select

from onebert_store.samples.records import Feedback, Sample

logger = logging.getLogger("onebert.samples")
T = TypeVar("T")

Decrypt = Callable[[str], Any]
"""Returns the value of a token; raises ValueError or TypeError if the token is damaged."""

_SAMPLE, _FEEDBACK = TypeAdapter(Sample), TypeAdapter(Feedback)


def rows_of(result: Result[Any], read: Callable[[Row[Any]], T]) -> Iterator[T | None]:
    """Yields each row of a result as `read` returns it; None for a damaged one."""
    while True:
        record = None
        try:
            if (row := result.fetchone()) is None:
                return
            record = read(row)
        # `read` raises them, and SQLAlchemy for a value that is not of its column's type.
        except (TypeError, ValueError):
            pass
        yield record


def read_rows(connection: Connection, query: Select[Any], read: Callable[[Row[Any]], T]) -> list[T]:
    """Returns the rows of a query, without damaged ones, which the log counts."""
    rows = [*rows_of(connection.execute(query), read)]
    readable = [row for row in rows if row is not None]
    if damaged := len(rows) - len(readable):
        logger.warning("%d damaged rows are left out: see `onebert store check`", damaged)
    return readable


def page_of(
    connection: Connection, table: Table, id: str, after: str, limit: int, *where: ColumnElement[bool]
) -> tuple[Select[Any], str | None]:
    """Returns the query for a page of a task's rows, and the key of its last row; None if no further rows follow."""
    [_, key] = table.primary_key
    selected = select(key).where(table.c.task == id, key > after, *where).order_by(key).limit(limit)
    keys = connection.scalars(selected).all()
    query = select(table).where(table.c.task == id, key.in_(keys)).order_by(key)
    return query, keys[-1] if len(keys) == limit else None


def sample_of(row: Row[Any], task: str, decrypt: Decrypt) -> Sample:
    """Returns a row's sample; raises ValueError or TypeError if the row is damaged."""
    sample = _SAMPLE.validate_python(row._asdict() | {"task": task, "texts": ()})
    return replace(sample, texts=tuple(decrypt(row.texts)))


def feedback_of(row: Row[Any], task: str, decrypt: Decrypt) -> Feedback:
    """Returns a row's feedback; raises ValueError or TypeError if the row is damaged."""
    without_text = {"task": task, "texts": None, "explanation": None}
    in_older_rows = {"reviewer": bool(row.reviewer), "new_labels": tuple(row.new_labels or ())}
    feedback = _FEEDBACK.validate_python(row._asdict() | without_text | in_older_rows)
    texts = None if row.texts is None else tuple(decrypt(row.texts))
    return replace(feedback, texts=texts, explanation=None if row.explanation is None else decrypt(row.explanation))
