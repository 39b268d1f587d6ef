"""The servers that follow a registry's changes, and how far each is: a row for each, written again and again."""

from dataclasses import dataclass

from sqlalchemy import ColumnElement, Double, delete, literal_column, select

from onebert_store.registry.database import REPLICAS, reading, upsert, writing
from onebert_store.registry.dialects.protocol import Database

LIVE_SECONDS = 5.0
"""A replica that has said nothing for longer is taken for dead."""
BEAT_SECONDS = 1.0
"""How often a replica says where it is, at least."""
FORGOTTEN_SECONDS = 24 * 3600.0


@dataclass(frozen=True)
class Replica:
    """A live server: which one, up to which change it has followed, and how many seconds ago it said so."""

    id: str
    seq: int
    seconds: float


class Replicas:
    """The servers of one registry; thread-safe.

    Every method raises StorageUnavailable where the database refuses to work.
    """

    def __init__(self, database: Database) -> None:
        self._database = database
        self._now: ColumnElement[float] = literal_column(database.seconds, Double)

    def report(self, replica: str, seq: int) -> None:
        """Says that a replica lives, and has followed the changes up to a number; forgets those long dead."""
        row = {"seq": seq, "at": self._now}
        with writing(self._database) as connection:
            new = upsert(connection, REPLICAS).values(id=replica, **row)
            connection.execute(new.on_conflict_do_update(index_elements=["id"], set_=row))
            connection.execute(delete(REPLICAS).where(REPLICAS.c.at < self._now - FORGOTTEN_SECONDS))

    def leave(self, replica: str) -> None:
        """Says that a replica has ended, so that nobody waits for it."""
        with writing(self._database) as connection:
            connection.execute(delete(REPLICAS).where(REPLICAS.c.id == replica))

    def live(self) -> list[Replica]:
        """Those that live, by id."""
        age = self._now - REPLICAS.c.at
        found = select(REPLICAS.c.id, REPLICAS.c.seq, age).where(age < LIVE_SECONDS).order_by(REPLICAS.c.id)
        with reading(self._database) as connection:
            return [Replica(*row) for row in connection.execute(found)]
