"""How far a reader outside of the registry has got in the feed; one of several replicas reads for it at a time.

The cursor lies in the database of the changes, and stays with them in a backup. A replica claims it by one UPDATE,
which succeeds if nobody holds it, and holds it for `LEASE_SECONDS` of the database's clock, which each `advance` begins
anew. It advances only after its reader has a change, from the number that it claimed or advanced to: a death before
that repeats the change and loses none. A replica whose lease was taken by another advances nothing, because each UPDATE
names the holder and the number; its reader may get one change twice. A lock of the database would need no lease, but
its transaction would hold a connection, in SQLite all writers, while a reader outside is slow.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import ColumnElement, Double, literal_column, or_, select, update

from onebert_store.registry.database import CURSORS, FEED, upsert
from onebert_store.registry.dialects.database import Database

# Above the longest attempt to give a reader one change.
LEASE_SECONDS = 60.0

_END = select(FEED.c.last).scalar_subquery()


class Cursor:
    """A named cursor as one replica, the `holder`, moves it; every method raises StorageUnavailable."""

    def __init__(self, database: Database, name: str, holder: str) -> None:
        self._database, self._name, self._holder = database, name, holder
        self._now: ColumnElement[float] = literal_column(database.seconds, Double)
        self._mine = CURSORS.c.name == name, CURSORS.c.holder == holder

    def begin(self) -> None:
        """Makes the cursor at the present end of the feed unless it exists."""
        with self._database.writing() as connection:
            new = upsert(connection, CURSORS).values(name=self._name, seq=_END, holder="", until=0.0)
            connection.execute(new.on_conflict_do_nothing())

    @property
    def behind(self) -> bool:
        """Whether the feed has changes that the reader has not."""
        found = select(CURSORS.c.seq < _END).where(CURSORS.c.name == self._name)
        with self._database.reading() as connection:
            return bool(connection.scalar(found))

    @contextmanager
    def claimed(self) -> Iterator[int | None]:
        """Yields the number of the last change that the reader has; None if another replica holds the cursor."""
        free = or_(CURSORS.c.holder == self._holder, CURSORS.c.until < self._now)
        held = update(CURSORS).where(CURSORS.c.name == self._name, free)
        taken = held.values(holder=self._holder, until=self._now + LEASE_SECONDS).returning(CURSORS.c.seq)
        with self._database.writing() as connection:
            seq = connection.scalar(taken)
        try:
            yield seq
        finally:
            if seq is not None:
                with self._database.writing() as connection:
                    connection.execute(update(CURSORS).where(*self._mine).values(holder="", until=0.0))

    def advance(self, before: int, seq: int) -> bool:
        """Notes that the reader has the changes up to `seq`; False, without effect, if the lease was lost."""
        row = {"seq": seq, "until": self._now + LEASE_SECONDS}
        with self._database.writing() as connection:
            moved = update(CURSORS).where(*self._mine, CURSORS.c.seq == before).values(row)
            return connection.execute(moved).rowcount == 1
