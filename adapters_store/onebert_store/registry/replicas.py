"""The servers that follow a registry's feed, one row each, and a cursor in it, which one of them moves at a time."""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from sqlalchemy import ColumnElement, Double, delete, literal_column, or_, select, update

from onebert_store.registry.database import CURSORS, FEED, REPLICAS, upsert
from onebert_store.registry.dialects.database import Database

# A replica counts as dead after this many seconds without a report.
LIVE_SECONDS = 5.0
# Seconds between two reports of a replica at most.
BEAT_SECONDS = 1.0
FORGOTTEN_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Replica:
    """A live server: its id, the latest change it has applied, and the seconds since its report."""

    id: str
    seq: int
    seconds: float


class Replicas:
    """The replicas of one registry; thread-safe. Every method raises StorageUnavailable if the database fails."""

    def __init__(self, database: Database) -> None:
        self._database = database
        self._now: ColumnElement[float] = literal_column(database.seconds, Double)

    def report(self, replica: str, seq: int) -> None:
        """Records that a replica lives and has applied changes up to `seq`; deletes replicas long dead."""
        row = {"seq": seq, "at": self._now}
        with self._database.writing() as connection:
            new = upsert(connection, REPLICAS).values(id=replica, **row)
            connection.execute(new.on_conflict_do_update(index_elements=["id"], set_=row))
            connection.execute(delete(REPLICAS).where(REPLICAS.c.at < self._now - FORGOTTEN_SECONDS))

    def leave(self, replica: str) -> None:
        """Deletes a replica that has stopped, so that nobody waits for it."""
        with self._database.writing() as connection:
            connection.execute(delete(REPLICAS).where(REPLICAS.c.id == replica))

    def live(self) -> list[Replica]:
        age = self._now - REPLICAS.c.at
        query = select(REPLICAS.c.id, REPLICAS.c.seq, age).where(age < LIVE_SECONDS).order_by(REPLICAS.c.id)
        with self._database.reading() as connection:
            return [Replica(*row) for row in connection.execute(query)]


# Above the longest attempt to give a reader one change.
LEASE_SECONDS = 60.0

_END = select(FEED.c.last).scalar_subquery()


class Cursor:
    """How far a reader outside of the registry has got in the feed, as one replica, the `holder`, moves it.

    Every method raises StorageUnavailable. The cursor lies in the database of the changes, and stays with them in a
    backup. A replica claims it by one UPDATE, which succeeds if nobody holds it, and holds it for `LEASE_SECONDS` of
    the database's clock, which each `advance` begins anew. It advances only after its reader has a change, from the
    number that it claimed or advanced to: a death before that repeats the change and loses none. A replica whose lease
    was taken by another advances nothing, because each UPDATE names the holder and the number; its reader may get one
    change twice. A lock of the database would need no lease, but its transaction would hold a connection, in SQLite all
    writers, while a reader outside is slow.
    """

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
        query = select(CURSORS.c.seq < _END).where(CURSORS.c.name == self._name)
        with self._database.reading() as connection:
            return bool(connection.scalar(query))

    @contextmanager
    def claimed(self) -> Iterator[int | None]:
        """Yields the number of the last change that the reader has; None if another replica holds the cursor."""
        free = or_(CURSORS.c.holder == self._holder, CURSORS.c.until < self._now)
        claim = update(CURSORS).where(CURSORS.c.name == self._name, free)
        taken = claim.values(holder=self._holder, until=self._now + LEASE_SECONDS).returning(CURSORS.c.seq)
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
