"""The servers that follow a registry's feed: one row each, which they update periodically."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Double, delete, literal_column, select

from onebert_store.registry.database import REPLICAS, upsert
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
        found = select(REPLICAS.c.id, REPLICAS.c.seq, age).where(age < LIVE_SECONDS).order_by(REPLICAS.c.id)
        with self._database.reading() as connection:
            return [Replica(*row) for row in connection.execute(found)]
