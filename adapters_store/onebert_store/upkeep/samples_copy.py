"""Copies kept answers and feedback beside a registry, encrypted as they are."""

from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import Connection, Table, func, select

from onebert_store.errors import InvalidInput
from onebert_store.registry.database import DELETED_TASKS
from onebert_store.registry.dialects.database import Database
from onebert_store.samples.store import SampleStore, join_samples, open_samples
from onebert_store.samples.tables import FEEDBACK, NAMING, SAMPLES, UNKNOWN
from onebert_store.upkeep.rows import replace_rows


@dataclass(frozen=True)
class CopiedSamples:
    """The rows that a target has got; `damaged` ones were left out.

    `stay`: none, because the target has later ones, as after the loss of its registry.
    """

    samples: int = 0
    feedback: int = 0
    damaged: int = 0
    stay: bool = False


class SamplesCopy:
    """Copies from one store to another; `source` is None if it has no rows and no tables for them."""

    def __init__(self, source: SampleStore | None, target: SampleStore | None) -> None:
        self._source, self._target = source, target
        self._stay = False

    def require_earlier(self, registry: Database, is_new: bool) -> None:
        """Checks that the target has no later feedback than the source, whose registry this is.

        Later rows stay if the target's registry `is_new`; else raises InvalidInput.
        """
        if self._source is None or self._target is None:
            return
        with registry.reading() as connection:
            deleted = {*connection.scalars(select(DELETED_TASKS.c.id))}
        with self._source.database.reading() as ours, self._target.database.reading() as theirs:
            has_later = [_has_later(theirs, ours, table, deleted) for table in (FEEDBACK, SAMPLES)]
        self._stay = is_new and any(has_later)
        if has_later[0] and not is_new:
            raise InvalidInput("feedback of the target never was in the source; copy into an empty store")

    @contextmanager
    def moment(self) -> Iterator[None]:
        """Holds the source's rows of one moment, for `write`."""
        if self._source is None:
            yield
            return
        with self._source.database.reading() as self._rows:
            # SQLite takes its snapshot with the first query.
            self._rows.execute(select(SAMPLES.c.id).limit(1)).all()
            yield

    def write(self) -> CopiedSamples:
        """Replaces the target's rows in one transaction. Marks are left out: the grace begins anew."""
        if self._stay or self._target is None:
            return CopiedSamples(stay=self._stay)
        database = self._target.database
        with database.writing() as sink, database.unhurried(sink):
            counts = replace_rows(self._rows, sink, (SAMPLES, FEEDBACK, NAMING))
            sink.execute(UNKNOWN.delete())
        return CopiedSamples(counts[SAMPLES], counts[FEEDBACK], counts[None])


@contextmanager
def samples_copy(source: Database, target: Database) -> Iterator[SamplesCopy]:
    """Opens the sample stores beside two registries."""
    with join_samples(source) as ours:
        if ours is None:
            yield SamplesCopy(None, None)
            return
        with open_samples(target) as theirs:
            yield SamplesCopy(ours, theirs)


def _has_later(target: Connection, source: Connection, table: Table, deleted: Collection[str]) -> bool:
    """Returns whether a task that is not deleted has later rows in the target, or rows there alone."""
    last = select(table.c.task, func.max(table.c.at)).group_by(table.c.task)
    known = {row.task: row[1] for row in source.execute(last)}
    return any(task not in known or at > known[task] for task, at in target.execute(last) if task not in deleted)
