"""The database of a registry: everything that differs between SQLite and PostgreSQL, and what both share."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from math import inf
from typing import ClassVar, TypeVar

from sqlalchemy import Connection, Engine, text

from onebert_store.errors import StorageFull, StorageUnavailable

T = TypeVar("T")

NO_DATABASE = (
    "the store has blobs but no database; put the database that goes with them back, "
    "or make versions of the blobs with `onebert store recover`"
)


@dataclass(frozen=True)
class Lock:
    """The lock on the blobs: of an upload, until a row names the blob, or of a sweep that removes blobs.

    Attributes:
        writing: opens the one transaction that writes an upload's row; it never commits if the lock has been lost.
        check: raises StorageUnavailable if the lock has been lost; call it before each removal.
    """

    writing: Callable[[], AbstractContextManager[Connection]]
    check: Callable[[], None]


# Waits at most so many seconds; True if another process announced a change. Raises StorageUnavailable if disconnected.
Listener = Callable[[float], bool]


class Database(ABC):
    """A database that holds a registry; thread-safe.

    Attributes:
        shared: True if several processes may open the registry at a time; otherwise one owns it, see `owned`.
        seconds: SQL for the time in seconds on the database's clock, the same clock for every machine.
        where: the database, in words for people, without user and password.
        readers: begins transactions that see one state of all tables.
        writers: begins transactions that change rows.
        state: "ok", or the error code if the storage refused the last transaction that changes rows.
    """

    shared: ClassVar[bool]
    seconds: ClassVar[str]

    def __init__(self, where: str, readers: Engine, writers: Engine) -> None:
        self.where, self.readers, self.writers = where, readers, writers
        self.state = "ok"

    def close(self) -> None:
        self.writers.dispose()

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Opens a transaction that sees one state of all tables."""
        with self.typed_errors(), self.readers.begin() as connection:
            yield connection

    @contextmanager
    def writing(self, until: float = inf) -> Iterator[Connection]:
        """Opens a transaction that changes rows; durable when the block ends without an error.

        Concurrent writers, threads or processes, need no other lock: each statement changes the rows it finds, and the
        code decides by the number of changed rows. A transaction holds the task's row if it writes a value that it
        computed from an earlier read. A busy database raises StorageUnavailable at `until` (seconds of
        `time.monotonic()`) or at its own limit.
        """
        try:
            with self.typed_errors(), self.writers.execution_options(onebert_until=until).begin() as connection:
                yield connection
        except (StorageFull, StorageUnavailable) as error:
            self.state = error.code
            raise
        self.state = "ok"

    def erase(self, work: Callable[[Connection], T], until: float = inf) -> T:
        """Returns the result of a transaction that deletes, as `writing`; repeats it if the disk is full.

        The deleted bytes leave the write-ahead log; a full disk has a reserve for this.
        """
        with self.writing(until) as connection:
            return work(connection)

    @abstractmethod
    def owned(self) -> AbstractContextManager[None]:
        """Creates the database's folder if needed and owns the registry while the block runs.

        Raises StoreLocked if another process (or this one, elsewhere) owns it, StoreCorrupt if something else is in the
        database's place, StorageFull or StorageUnavailable if the disk fails, OSError if the folder cannot be made.
        """

    @abstractmethod
    def joined(self) -> AbstractContextManager[Callable[[], bool]]:
        """Yields a function that returns True if no process owns the registry, and keeps owners out from then on.

        Until that call any process may become the owner; most callers never call it. Raises StoreCorrupt if the
        database does not exist, StorageFull or StorageUnavailable if the disk fails.
        """

    @abstractmethod
    def typed_errors(self) -> AbstractContextManager[None]:
        """Converts errors that an operator can fix into typed ones; bugs of this code pass unchanged.

        Raises StorageFull if no room is left, StoreCorrupt if the database is damaged or not a database, and
        StorageUnavailable if it cannot be reached, opened, read, written or locked.
        """

    @abstractmethod
    def adding(self, until: float = inf) -> AbstractContextManager[Lock]:
        """Holds a shared lock during an upload; excludes `sweeping`. Waits as `writing`."""

    @abstractmethod
    def sweeping(self) -> AbstractContextManager[Lock]:
        """Holds an exclusive lock while blobs are removed: waits for uploads inside `adding`, delays new ones."""

    def migrating(self, connection: Connection) -> AbstractContextManager[None]:
        """Serializes schema changes until the connection's transaction ends."""
        return nullcontext()

    def unhurried(self, connection: Connection) -> AbstractContextManager[None]:
        """Raises the statement time limit for the connection's transaction, for work on whole tables."""
        return nullcontext()

    def announce(self, connection: Connection) -> None:  # noqa: B027 - there may be no other process
        """Notifies every `listening` process once the connection's transaction has committed."""

    def listening(self) -> AbstractContextManager[Listener | None]:
        """Yields a listener for other processes' announcements; None if the database has no notifications."""
        return nullcontext()

    @abstractmethod
    def schema_mark(self, connection: Connection) -> int:
        """Reads the schema's number: 0 if there are no tables yet."""

    def set_schema_mark(self, connection: Connection, number: int) -> None:
        """Stores the schema's number; the table has the name and form of Alembic's, which made it at first."""
        mark = "version_num VARCHAR(32) NOT NULL, CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)"
        connection.execute(text(f"CREATE TABLE IF NOT EXISTS alembic_version ({mark})"))
        connection.execute(text("DELETE FROM alembic_version"))
        connection.execute(text("INSERT INTO alembic_version VALUES (:mark)"), {"mark": f"{number:04d}"})

    @abstractmethod
    def integrity_errors(self, connection: Connection) -> list[str]: ...
