"""What the registry asks of a database beside the SQL that all of them speak."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Protocol

from sqlalchemy import Connection, Engine

NO_DATABASE = (
    "the store has blobs but no database; put the database that goes with them back, "
    "or make versions of the blobs with `onebert store recover`"
)


class Adding(Protocol):
    """The lock of one who adds a version: from before the blob's commit until a row names the blob."""

    def writing(self) -> AbstractContextManager[Connection]:
        """The transaction of that row, once: durable when its block ends, and never where the lock has been lost."""


class Sweeping(Protocol):
    """The lock of one who removes blobs that no version names."""

    def check(self) -> None:
        """To be called before each removal; raises StorageUnavailable where the lock has been lost."""


class Listener(Protocol):
    """Hears what others announce."""

    def wait(self, seconds: float) -> bool:
        """Returns when something was announced, or after so many seconds; whether something was.

        Raises:
            StorageUnavailable: the connection is lost.
        """


class Database(Protocol):
    """One database with a registry's rows; every method may be called from any thread.

    Attributes:
        where: which database it is, for people; without what a URL may hold of a login.
        shared: whether several processes may have the registry open at a time. Otherwise one owns it, as `owned` says.
        readers: begins transactions that see one state of all tables.
        writers: begins transactions that change rows.
        seconds: SQL for the time of the database's clock, in seconds: of one clock, whichever machine asks.
    """

    where: str
    shared: bool
    readers: Engine
    writers: Engine
    seconds: str

    def close(self) -> None:
        """Closes all connections."""

    def owned(self) -> AbstractContextManager[None]:
        """Makes what the database needs to be there, and owns the registry while the block runs.

        Raises:
            StoreLocked: another process (or this one, elsewhere) owns it.
            StoreCorrupt: there is something else in its place.
            StorageFull, StorageUnavailable: the disk refuses.
        """

    def joined(self) -> AbstractContextManager[Callable[[], bool]]:
        """Gives what says whether this process is alone with the registry; if it is, nobody becomes owner meanwhile.

        Unasked it keeps nobody from becoming owner: most of those who join need not know.

        Raises:
            StoreCorrupt: there is no database.
            StorageFull, StorageUnavailable: the disk refuses.
        """

    def typed_errors(self) -> AbstractContextManager[None]:
        """Turns the database's errors that an operator can mend into typed ones; mistakes of this code pass.

        Raises:
            StorageFull: no room is left.
            StoreCorrupt: the database is damaged, or none.
            StorageUnavailable: it cannot be reached, opened, read, written or locked.
        """

    def adding(self) -> AbstractContextManager[Adding]:
        """Held from before a blob's commit until a row names the blob: meanwhile nobody is inside `sweeping`."""

    def sweeping(self) -> AbstractContextManager[Sweeping]:
        """Held while blobs without rows are removed: waits for those inside `adding`, and keeps new ones out."""

    def migrating(self, connection: Connection) -> AbstractContextManager[None]:
        """Held inside a transaction that changes the schema: others who want to change it wait for its end."""

    def unhurried(self, connection: Connection) -> AbstractContextManager[None]:
        """Lets statements of the connection's transaction take long while the block runs: those about whole tables."""

    def announce(self, connection: Connection) -> None:
        """Tells those who are `listening`, once the connection's transaction is durable, that something was changed."""

    def listening(self) -> AbstractContextManager[Listener | None]:
        """What hears announcements while the block runs; None where the database makes none.

        Raises:
            StorageUnavailable: it cannot be reached.
        """

    def schema_mark(self, connection: Connection) -> int:
        """The number of the schema: 0 where there are no tables yet."""

    def set_schema_mark(self, connection: Connection, number: int) -> None:
        """Marks the schema after Alembic has changed it and noted that in its own table."""

    def integrity_errors(self, connection: Connection) -> list[str]:
        """What the database itself finds wrong; nothing where all is well."""
