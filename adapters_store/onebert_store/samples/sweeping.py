"""Sweeps samples and feedback: deletes old texts and the rows of deleted tasks, marks rows unknown to the registry.

An older registry put back beside newer samples does not know their tasks. The mark keeps their rows until an operator
runs `onebert store gc` a day later.
"""

from collections import Counter
from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from sqlalchemy import ColumnElement, Connection, delete, func, select, union, update

from onebert_store.registry.database import upsert
from onebert_store.registry.dialects.database import Database
from onebert_store.samples.owners import Owners
from onebert_store.samples.records import Retention, Unknown
from onebert_store.samples.tables import FEEDBACK, SAMPLES, TABLES, UNKNOWN

# Values of a row of feedback without its text.
NO_TEXT = {"texts": None, "texts_at": None, "explanation": None}

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class Sweeper:
    """Sweeps one sample store; `owners` looks up tasks in its registry."""

    def __init__(self, owners: Owners, database: Database) -> None:
        self._owners = owners
        self._database = database

    def sweep(self, ids: Collection[str] | None = None) -> list[Unknown]:
        """Deletes all rows of deleted tasks, and texts that are too old or no longer kept.

        Marks rows that the registry does not know, unmarks others, and returns the newly marked ones. `ids` are ids of
        tasks; None means all that have rows.
        """
        checked = [self._sweep(id) for id in (self._ids() if ids is None else ids)]
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
            with self._database.writing() as connection:
                retention = self._owners.retention(unknown.id)
                if is_due:
                    _remove(connection, unknown.id, retention)
                _mark(connection, unknown.id, _unknown(connection, unknown.id, retention))
        return due

    def _sweep(self, id: str) -> Unknown | None:
        retention = self._owners.retention(id)
        with self._database.writing() as connection:
            if retention:
                _expire(connection, id, retention)
            unknown = _unknown(connection, id, retention)
            _mark(connection, id, unknown)
        return unknown

    def _ids(self) -> list[str]:
        """The ids of all tasks with rows."""
        ids = union(*(select(table.c.task) for table in TABLES.metadata.sorted_tables))
        with self._database.reading() as connection:
            return [*connection.scalars(ids)]


def delete_texts(connection: Connection, samples: ColumnElement[bool], feedback: ColumnElement[bool]) -> int:
    """Deletes the samples and the texts of feedback that fulfil a condition; returns how many."""
    # Samples before feedback, everywhere: PostgreSQL would end one of two that wait for each other.
    deleted = connection.execute(delete(SAMPLES).where(samples)).rowcount
    texts = update(FEEDBACK).where(feedback, FEEDBACK.c.texts.is_not(None))
    return deleted + connection.execute(texts.values(NO_TEXT)).rowcount


def trim_feedback(connection: Connection, task: str, limit: int) -> None:
    """Deletes a task's rows above a number, each the oldest of the principal that has most: nobody else loses one."""
    rows, count = FEEDBACK.c.task == task, func.count()
    number = connection.scalar(select(count).select_from(FEEDBACK).where(rows)) or 0
    if number <= limit:
        return
    # One per cent more, because the counts of all principals take ten times as long.
    excess = number - limit + limit // 100
    by_principal = select(FEEDBACK.c.principal, count.label("rows")).where(rows).group_by(FEEDBACK.c.principal)
    most = by_principal.order_by(count.desc(), func.min(FEEDBACK.c.at)).limit(excess)
    counts, deleted = {row.principal: row.rows for row in connection.execute(most)}, Counter[str]()
    for _ in range(excess):
        largest = max(counts, key=counts.__getitem__)
        counts[largest] -= 1
        deleted[largest] += 1
    for principal, number in deleted.items():
        own = select(FEEDBACK.c.identifier).where(rows, FEEDBACK.c.principal == principal)
        oldest = own.order_by(FEEDBACK.c.at, FEEDBACK.c.identifier).limit(number)
        connection.execute(delete(FEEDBACK).where(rows, FEEDBACK.c.identifier.in_(oldest)))


def _trim_samples(connection: Connection, task: str, limit: int) -> None:
    """Deletes a task's oldest samples above a number."""
    # One direction for both columns, so that the index gives the order and nothing is sorted.
    own = select(SAMPLES.c.id).where(SAMPLES.c.task == task)
    oldest = own.order_by(SAMPLES.c.at.desc(), SAMPLES.c.id.desc()).offset(limit)
    connection.execute(delete(SAMPLES).where(SAMPLES.c.task == task, SAMPLES.c.id.in_(oldest)))


def _expire(connection: Connection, id: str, retention: Retention) -> None:
    samples, feedback = SAMPLES.c.task == id, FEEDBACK.c.task == id
    if retention.task is None:
        _delete_rows(connection, id)
    elif retention.days is not None and retention.max_samples is not None:
        since = datetime.now(UTC) - timedelta(days=retention.days)
        delete_texts(connection, samples & (SAMPLES.c.at < since), feedback & (FEEDBACK.c.texts_at < since))
        _trim_samples(connection, id, retention.max_samples)
    elif end := retention.unkept_at:
        delete_texts(connection, samples & (SAMPLES.c.at <= end), feedback & (FEEDBACK.c.texts_at <= end))


def _unknown(connection: Connection, id: str, retention: Retention | None) -> Unknown | None:
    """Counts the rows of a task that are unknown to the registry; returns None without any."""
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
    return samples & (SAMPLES.c.at > since), feedback & (FEEDBACK.c.texts_at > since)


def _remove(connection: Connection, id: str, retention: Retention | None) -> None:
    if retention is None:
        _delete_rows(connection, id)
    elif retention.days is None:
        delete_texts(connection, *_of_unknown(id, retention))


def _delete_rows(connection: Connection, id: str) -> None:
    for table in TABLES.metadata.sorted_tables:
        connection.execute(delete(table).where(table.c.task == id))


def _mark(connection: Connection, id: str, unknown: Unknown | None) -> None:
    if unknown is None:
        connection.execute(delete(UNKNOWN).where(UNKNOWN.c.task == id))
    elif unknown.since is None:
        mark = upsert(connection, UNKNOWN).values(task=id, since=datetime.now(UTC))
        connection.execute(mark.on_conflict_do_nothing())
