"""Copies kept answers and feedback beside a registry, encrypted as they are."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import Connection, func, select

from onebert_store.errors import InvalidInput
from onebert_store.registry.database import DELETED_TASKS
from onebert_store.registry.dialects.database import Database
from onebert_store.samples.tables import FEEDBACK, NAMING, SAMPLES, UNKNOWN
from onebert_store.upkeep.rows import replace_rows


def later_stay(registry: Database, source: Database, target: Database, is_new: bool) -> bool:
    """Returns whether the target keeps its rows, because it has later ones than the source, and a new registry.

    Beside an older registry later feedback raises InvalidInput. `registry` is the source's: rows of tasks that it has
    deleted do not count.
    """
    with registry.reading() as connection:
        deleted = {*connection.scalars(select(DELETED_TASKS.c.id))}
    later = []
    for table in (FEEDBACK, SAMPLES):
        last = select(table.c.task, func.max(table.c.at)).group_by(table.c.task)
        with source.reading() as ours, target.reading() as theirs:
            known = {row.task: row[1] for row in ours.execute(last)}
            rows = [(task, at) for task, at in theirs.execute(last) if task not in deleted]
        later.append(any(task not in known or at > known[task] for task, at in rows))
    if later[0] and not is_new:
        raise InvalidInput("feedback of the target never was in the source; copy into an empty store")
    return is_new and any(later)


@contextmanager
def one_moment(samples: Database) -> Iterator[Connection]:
    """Opens a transaction whose moment is now; SQLite alone would wait for the first query."""
    with samples.reading() as connection:
        connection.execute(select(SAMPLES.c.id).limit(1)).all()
        yield connection


def replace_samples(source: Connection, target: Database) -> Counter[str]:
    """Replaces the target's rows in one transaction, see `replace_rows`; without marks: the grace begins anew."""
    with target.writing() as sink, target.unhurried(sink):
        sink.execute(UNKNOWN.delete())
        return replace_rows(source, sink, (SAMPLES, FEEDBACK, NAMING))
