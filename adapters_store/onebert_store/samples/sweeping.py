"""Sweeps samples and feedback: deletes old samples and the rows of deleted tasks, marks rows unknown to the registry.

An older registry put back beside newer samples does not know their tasks. The mark keeps their rows until an operator
runs `onebert store gc` a day later.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import partial
from math import inf
from typing import Any, NamedTuple

from sqlalchemy import Column, ColumnElement, Connection, Select, Table, delete, func, select, true, union, update

from onebert_store.errors import StorageFull
from onebert_store.registry.database import upsert
from onebert_store.registry.dialects.database import Database
from onebert_store.samples.owners import Owners
from onebert_store.samples.records import Retention, Unknown
from onebert_store.samples.tables import FEEDBACK, OF_TASKS, SAMPLES, UNKNOWN

# Values of a row of feedback without its text.
NO_TEXT = {"texts": None, "mac": None, "explanation": None}

# Rows that one transaction deletes, so that others need not wait for long; a full disk may refuse so many, so this
# part of them comes next.
_ERASED_TOGETHER, _FEWER = 1000, 10

_ALL = true()
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Erasure(NamedTuple):
    """The rows of a task with the keys of a query: they are deleted, or get `values`."""

    table: Table
    id: str
    keys: Select[Any]
    values: Mapping[str, None] | None = None

    def run(self, connection: Connection, number: int) -> int:
        """Erases so many rows; returns how many there were."""
        erased = update(self.table).values(self.values) if self.values else delete(self.table)
        chosen = self.table.c.task == self.id, _key(self.table).in_(self.keys.limit(number))
        return connection.execute(erased.where(*chosen)).rowcount


class Sweeper:
    """Sweeps one sample store; `owners` looks up tasks in its registry."""

    def __init__(self, owners: Owners, database: Database) -> None:
        self._owners = owners
        self._database = database

    def sweep(self, ids: Collection[str] | None = None, until: float = inf) -> list[Unknown]:
        """Deletes all rows of deleted tasks, samples that are too old, and texts that are no longer kept.

        Marks rows that the registry does not know, unmarks others, and returns the newly marked ones. `ids` are ids of
        tasks; None means all that have rows.
        """
        checked = [self._sweep(id, until) for id in (self._ids() if ids is None else ids)]
        return [unknown for unknown in checked if unknown and unknown.since is None]

    def unknown(self) -> list[Unknown]:
        """Returns the rows that the registry does not know, by id of the task."""
        retentions = {id: self._owners.retention(id) for id in sorted(self._ids())}
        with self._database.reading() as connection:
            checked = [_unknown(connection, id, retention) for id, retention in retentions.items()]
        return [unknown for unknown in checked if unknown]

    def remove_unknown(self, grace: timedelta) -> dict[Unknown, bool]:
        """Removes unknown rows marked for `grace`, marks new ones; returns all, and which were removed."""
        now = datetime.now(UTC)
        due = {unknown: (unknown.since or now) <= now - grace for unknown in self.unknown()}
        for unknown, is_due in due.items():
            retention = self._owners.retention(unknown.id)
            self._erase(unknown.id, retention, _removed(unknown.id, retention) if is_due else ())
        return due

    def _sweep(self, id: str, until: float) -> Unknown | None:
        retention = self._owners.retention(id)
        return self._erase(id, retention, _expired(id, retention) if retention else (), until)

    def _erase(
        self, id: str, retention: Retention | None, erasures: Sequence[Erasure], until: float = inf
    ) -> Unknown | None:
        erase(self._database, erasures, until)
        with self._database.writing(until) as connection:
            unknown = _unknown(connection, id, retention)
            _mark(connection, id, unknown)
        return unknown

    def _ids(self) -> list[str]:
        ids = union(*(select(table.c.task) for table in OF_TASKS))
        with self._database.reading() as connection:
            return [*connection.scalars(ids)]


def trim_feedback(connection: Connection, task: str, limit: int) -> None:
    """Deletes a task's rows above a number, each the oldest of the principal that has most: nobody else loses one."""
    of_task = FEEDBACK.c.task == task
    number = connection.scalar(select(func.count()).select_from(FEEDBACK).where(of_task)) or 0
    if number <= limit:
        return
    # The principal with the most rows has the highest places.
    latest = FEEDBACK.c.at.desc(), FEEDBACK.c.identifier.desc()
    place = func.row_number().over(partition_by=FEEDBACK.c.principal, order_by=latest)
    # One per cent more, because all rows are sorted.
    oldest = select(FEEDBACK.c.identifier).where(of_task).order_by(place.desc(), FEEDBACK.c.at)
    oldest = oldest.limit(number - limit + limit // 100)
    connection.execute(delete(FEEDBACK).where(of_task, FEEDBACK.c.identifier.in_(oldest)))


def erase(database: Database, erasures: Sequence[Erasure], until: float = inf) -> int:
    """Deletes rows, some in each transaction; returns how many. Raises StorageFull if a disk refuses even one row."""
    erased, number = 0, _ERASED_TOGETHER
    while True:
        try:
            rows = database.erase(partial(_run, erasures=erasures, number=number), until)
        except StorageFull:
            if number == 1:
                raise
            number //= _FEWER
        else:
            erased += rows
            if rows < number:
                return erased


def _run(connection: Connection, erasures: Sequence[Erasure], number: int) -> int:
    return sum(erasure.run(connection, number) for erasure in erasures)


def texts_of(id: str, samples: ColumnElement[bool] = _ALL, feedback: ColumnElement[bool] = _ALL) -> list[Erasure]:
    """Returns what deletes samples of a task, and the texts of its feedback, that fulfil conditions."""
    texts = _rows(FEEDBACK, id, feedback, FEEDBACK.c.texts.is_not(None))
    return [_rows(SAMPLES, id, samples), texts._replace(values=NO_TEXT)]


def _rows(table: Table, id: str, *where: ColumnElement[bool]) -> Erasure:
    return Erasure(table, id, select(_key(table)).where(table.c.task == id, *where))


def _key(table: Table) -> Column[Any]:
    key: Column[Any] = [*table.primary_key][-1]
    return key


def _expired(id: str, retention: Retention) -> list[Erasure]:
    if retention.task is None:
        return _all_rows(id)
    if retention.days is not None:
        since = datetime.now(UTC) - timedelta(days=retention.days)
        # One direction for both columns, so that the index gives the order and nothing is sorted.
        latest = select(SAMPLES.c.id).where(SAMPLES.c.task == id).order_by(SAMPLES.c.at.desc(), SAMPLES.c.id.desc())
        too_many = Erasure(SAMPLES, id, latest.offset(retention.max_samples))
        return [too_many, _rows(SAMPLES, id, SAMPLES.c.at < since)]
    if end := retention.unkept_at:
        return texts_of(id, SAMPLES.c.at <= end, FEEDBACK.c.at <= end)
    return []


def _all_rows(id: str) -> list[Erasure]:
    return [_rows(table, id) for table in OF_TASKS]


def _unknown(connection: Connection, id: str, retention: Retention | None) -> Unknown | None:
    if retention and (retention.task is None or retention.days is not None):
        return None
    samples, feedback = (
        connection.scalar(select(func.count()).select_from(table).where(condition)) or 0
        for table, condition in zip((SAMPLES, FEEDBACK), _of_unknown(id, retention), strict=True)
    )
    if not samples and not feedback:
        return None
    since = connection.scalar(select(UNKNOWN.c.since).where(UNKNOWN.c.task == id))
    return Unknown(id, retention.task if retention else None, samples, feedback, since)


def _of_unknown(id: str, retention: Retention | None) -> tuple[ColumnElement[bool], ColumnElement[bool]]:
    """Returns the conditions of unknown samples and feedback; a known task's are texts later than its last keeping."""
    samples, feedback = SAMPLES.c.task == id, FEEDBACK.c.task == id
    if retention is None:
        return samples, feedback
    since = retention.unkept_at or _EPOCH
    return samples & (SAMPLES.c.at > since), feedback & FEEDBACK.c.texts.is_not(None) & (FEEDBACK.c.at > since)


def _removed(id: str, retention: Retention | None) -> list[Erasure]:
    if retention is None:
        return _all_rows(id)
    samples, feedback = _of_unknown(id, retention)
    now = datetime.now(UTC)
    texts = texts_of(id, samples & (SAMPLES.c.at <= now), feedback & (FEEDBACK.c.at <= now))
    return texts if retention.days is None else []


def _mark(connection: Connection, id: str, unknown: Unknown | None) -> None:
    if unknown is None:
        connection.execute(delete(UNKNOWN).where(UNKNOWN.c.task == id))
    elif unknown.since is None:
        mark = upsert(connection, UNKNOWN).values(task=id, since=datetime.now(UTC))
        connection.execute(mark.on_conflict_do_nothing())
