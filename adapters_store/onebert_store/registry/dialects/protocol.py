"""The protocol of a registry's database: everything that differs between SQLite and PostgreSQL."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection, Engine

NO_DATABASE = (
    "the store has blobs but no database; put the database that goes with them back, "
    "or make versions of the blobs with `onebert store recover`"
)


class Lock(Protocol):
    """The lock on the blobs: of an upload, until a row names the blob, or of a sweep that removes blobs."""

    def writing(self) -> AbstractContextManager[Connection]:
        """Opens the one transaction that writes an upload's row; it never commits if the lock has been lost."""

    def check(self) -> None:
        """Raises StorageUnavailable if the lock has been lost; call it before each removal."""


class Listener(Protocol):
    """Waits for other processes' announcements."""

    def wait(self, seconds: float) -> bool:
        """Waits at most `seconds`; True if a change was announced. Raises StorageUnavailable if disconnected."""


class Database(Protocol):
    """A database that holds a registry; thread-safe.

    Attributes:
        where: the database, in words for people, without user and password.
        shared: True if several processes may open the registry at a time; otherwise one owns it, see `owned`.
        readers: begins transactions that see one state of all tables.
        writers: begins transactions that change rows.
        seconds: SQL for the time in seconds on the database's clock, the same clock for every machine.
    """

    where: str
    shared: bool
    readers: Engine
    writers: Engine
    seconds: str

    def close(self) -> None: ...

    def owned(self) -> AbstractContextManager[None]:
        """Creates the database's folder if needed and owns the registry while the block runs.

        Raises StoreLocked if another process (or this one, elsewhere) owns it, StoreCorrupt if something else is in the
        database's place, StorageFull or StorageUnavailable if the disk fails, OSError if the folder cannot be made.
        """

    def joined(self) -> AbstractContextManager[Callable[[], bool]]:
        """Yields a function that returns True if no process owns the registry, and keeps owners out from then on.

        Until that call any process may become the owner; most callers never call it. Raises StoreCorrupt if the
        database does not exist, StorageFull or StorageUnavailable if the disk fails.
        """

    def typed_errors(self) -> AbstractContextManager[None]:
        """Converts errors that an operator can fix into typed ones; bugs of this code pass unchanged.

        Raises StorageFull if no room is left, StoreCorrupt if the database is damaged or not a database, and
        StorageUnavailable if it cannot be reached, opened, read, written or locked.
        """

    def adding(self) -> AbstractContextManager[Lock]:
        """Holds a shared lock during an upload; excludes `sweeping`."""

    def sweeping(self) -> AbstractContextManager[Lock]:
        """Holds an exclusive lock while blobs are removed: waits for uploads inside `adding`, delays new ones."""

    def migrating(self, connection: Connection) -> AbstractContextManager[None]:
        """Serializes schema changes until the connection's transaction ends."""

    def unhurried(self, connection: Connection) -> AbstractContextManager[None]:
        """Raises the statement time limit for the connection's transaction, for work on whole tables."""

    def announce(self, connection: Connection) -> None:
        """Notifies every `listening` process once the connection's transaction has committed."""

    def listening(self) -> AbstractContextManager[Listener | None]:
        """Yields a listener for other processes' announcements; None if the database has no notifications."""

    def schema_mark(self, connection: Connection) -> int:
        """Reads the schema's number: 0 if there are no tables yet."""

    def set_schema_mark(self, connection: Connection, number: int) -> None:
        """Stores the schema's number, after Alembic has changed the schema and its own table."""

    def integrity_errors(self, connection: Connection) -> list[str]: ...
