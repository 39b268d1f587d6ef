"""PostgreSQL: a server that any number of replicas share, by psycopg."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from math import inf
from time import monotonic
from typing import Any

import psycopg
from sqlalchemy import Connection, Engine, ExceptionContext, RootTransaction, create_engine, event, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft

from onebert_store.errors import OneBertError, StorageFull, StorageUnavailable, StoreCorrupt
from onebert_store.registry.dialects.postgresql_connection import (
    STATEMENT_S,
    Connector,
    PatientConnection,
    parse,
    place,
)

# The two locks' names among the advisory locks of one database: a number for OneBERT, and one for each.
_ONEBERT = 0x1BE27
_BLOBS, _SCHEMA = 1, 2
_CHANNEL = "onebert_changes"
_SHARED, _EXCLUSIVE = "pg_advisory_xact_lock_shared", "pg_advisory_xact_lock"

SWEEP_WAIT_S = 120
"""Seconds that a sweep waits for the uploads that were before it."""
MIGRATION_S = 600
"""Seconds that a change of the schema may take, and that another replica waits for it."""

WHOLE_TABLES_S = 3600
"""Seconds that a statement about all rows of a table may take, as a copy of a store has them."""

_READ_ONLY = "25006"
_CORRUPT = {"XX001", "XX002", "42P01", "42703"}
# By the whole SQLSTATE, or by its class.
_UNAVAILABLE = {
    "08": "the connection is lost",
    _READ_ONLY: "it is read-only",
    "25P03": "the transaction was idle for too long",
    "25P04": "the transaction took too long",
    "28": "it refuses the login",
    "3D": "there is no such database",
    "40": "another change came in between",
    "42501": "it does not allow that to its user",
    "53": "it has no resources left",
    "55P03": "another process holds it",
    "57014": "it took too long",
    "57": "it is being stopped or started",
    "58": "its disk fails",
}


class PostgresDatabase:
    """A registry in a database of PostgreSQL; see `Database` for the methods.

    Transactions that write are READ COMMITTED. The lock of those who add is taken in the very transaction that writes
    the row: where the connection is lost, and the lock with it, there is no row either.
    """

    shared = True
    seconds = "EXTRACT(EPOCH FROM clock_timestamp())::float8"

    def __init__(self, url: str) -> None:
        """Connects to nothing yet.

        Raises:
            InvalidSettings: the URL is none.
        """
        parameters = parse(url)
        self.where = place(parameters)
        self._connect = Connector(parameters)
        engine = create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            # A connection that the server has closed meanwhile is noticed before it is used.
            pool_pre_ping=True,
            pool_timeout=STATEMENT_S,
            use_native_hstore=False,
        )
        event.listen(engine, "handle_error", _leave_a_standby)
        event.listen(engine, "begin", _begin)
        self.readers: Engine = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        self.writers: Engine = engine.execution_options(isolation_level="READ COMMITTED")

    def close(self) -> None:
        """Closes all connections."""
        self.writers.dispose()

    @contextmanager
    def owned(self) -> Iterator[None]:
        """Nobody owns what is shared."""
        yield

    @contextmanager
    def joined(self) -> Iterator[Callable[[], bool]]:
        """Nobody knows to be alone with what is shared."""
        yield lambda: False

    @contextmanager
    def typed_errors(self) -> Iterator[None]:
        """Types errors by SQLSTATE."""
        try:
            yield
        except NoConnectionLeft as error:
            raise _unavailable("all connections to it are in use") from error
        except DBAPIError as error:
            if typed := _typed(error.orig):
                raise typed from error
            raise

    @contextmanager
    def adding(self) -> Iterator["_Adding"]:
        """An advisory lock, shared; its transaction is the one that writes the row."""
        with self._locked(_SHARED) as (connection, transaction):
            yield _Adding(self, connection, transaction)

    @contextmanager
    def sweeping(self) -> Iterator["_Sweeping"]:
        """An advisory lock, exclusive, in a transaction that does nothing else."""
        with self._locked(_EXCLUSIVE, SWEEP_WAIT_S) as (connection, _):
            yield _Sweeping(self, connection)

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        """An advisory lock, exclusive, until the transaction ends."""
        with _patient(connection, MIGRATION_S):
            _lock(connection, _EXCLUSIVE, _SCHEMA)
            yield

    def unhurried(self, connection: Connection) -> AbstractContextManager[None]:
        """Longer limits of this transaction's own."""
        return _patient(connection, WHOLE_TABLES_S)

    def announce(self, connection: Connection) -> None:
        """NOTIFY, which is part of the transaction."""
        connection.execute(text(f"NOTIFY {_CHANNEL}"))

    @contextmanager
    def listening(self) -> Iterator["_Listener"]:
        """LISTEN, on a connection that does nothing else."""
        with _typed_errors():
            connection = self._connect()
        try:
            yield _Listener(connection)
        finally:
            connection.close()

    def schema_mark(self, connection: Connection) -> int:
        """What Alembic has noted; raises StoreCorrupt where another program's Alembic has."""
        if connection.scalar(text("SELECT to_regclass('alembic_version')")) is None:
            return 0
        mark = connection.scalar(text("SELECT version_num FROM alembic_version")) or "0"
        if not mark.isdecimal():
            raise StoreCorrupt("the database has the tables of another program; give OneBERT one of its own")
        return int(mark)

    def set_schema_mark(self, connection: Connection, number: int) -> None:
        """Nothing more: the mark is Alembic's own."""

    def integrity_errors(self, connection: Connection) -> list[str]:
        """Indexes that PostgreSQL does not use because making them failed; rows and references it keeps whole."""
        bad = (
            "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
            " WHERE NOT indisvalid AND relnamespace = current_schema()::regnamespace"
        )
        return [f"the index {name} is not valid" for name in connection.scalars(text(bad))]

    @contextmanager
    def _locked(self, function: str, wait_s: int = 0) -> Iterator[tuple[Connection, RootTransaction]]:
        with self.typed_errors():
            connection = self.writers.connect()
        try:
            with self.typed_errors():
                transaction = connection.begin()
                with _patient(connection, wait_s) if wait_s else nullcontext():
                    _lock(connection, function, _BLOBS)
            yield connection, transaction
        finally:
            # What was not committed is rolled back, which gives the lock back; a lost connection has done so already.
            with suppress(SQLAlchemyError):
                connection.close()


class _Listener:
    """A connection that has said LISTEN."""

    def __init__(self, connection: PatientConnection) -> None:
        self._connection = connection
        with _typed_errors():
            connection.autocommit = True
            connection.execute(f"LISTEN {_CHANNEL}")

    def wait(self, seconds: float) -> bool:
        with _typed_errors():
            # Many announcements of a moment are one.
            return any(True for _ in self._connection.notifies(timeout=seconds, stop_after=1))


@contextmanager
def _typed_errors() -> Iterator[None]:
    """Types errors of the driver itself."""
    try:
        yield
    except psycopg.Error as error:
        raise _typed(error) or _unavailable("the connection is lost") from error


class _Adding:
    """The shared lock, and the transaction that holds it."""

    def __init__(self, database: PostgresDatabase, connection: Connection, transaction: RootTransaction) -> None:
        self._database = database
        self._connection = connection
        self._transaction = transaction

    @contextmanager
    def writing(self) -> Iterator[Connection]:
        with self._database.typed_errors(), self._transaction:
            yield self._connection


class _Sweeping:
    """The exclusive lock."""

    def __init__(self, database: PostgresDatabase, connection: Connection) -> None:
        self._database = database
        self._connection = connection

    def check(self) -> None:
        with self._database.typed_errors():
            self._connection.execute(text("SELECT 1"))


def _lock(connection: Connection, function: str, what: int) -> None:
    connection.execute(text(f"SELECT {function}({_ONEBERT}, {what})"))


@contextmanager
def _patient(connection: Connection, seconds: int) -> Iterator[None]:
    """Statements of this transaction may take so long, until the block ends."""
    driver: Any = connection.connection.driver_connection
    before, driver.patience = driver.patience, driver.patience + seconds
    try:
        _limit(connection, f"{seconds}s")
        yield
    finally:
        driver.patience = before


def _typed(error: BaseException | None) -> OneBertError | None:
    """The error that an operator or a client is told; None where this code is wrong."""
    if not isinstance(error, psycopg.Error):
        return None
    state = error.sqlstate
    if state is None:
        lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError)
        return _unavailable("it cannot be reached") if lost else None
    if state == "53100":
        return StorageFull("the database's disk has no room for this")
    if state in _CORRUPT:
        return StoreCorrupt("the store's database is damaged, or tables are missing in it")
    reason = _UNAVAILABLE.get(state) or _UNAVAILABLE.get(state[:2])
    return _unavailable(reason) if reason else None


def _unavailable(reason: str) -> StorageUnavailable:
    return StorageUnavailable(f"the store's database does not work: {reason}")


def _begin(connection: Connection) -> None:
    seconds = connection.get_execution_options().get("onebert_until", inf) - monotonic()
    # Else the connection's own limits come first.
    if seconds < STATEMENT_S:
        # 0 would be no limit.
        _limit(connection, f"{max(1.0, seconds * 1000):.0f}ms")


def _limit(connection: Connection, time: str) -> None:
    """Statements of this transaction, and their waiting for locks, may take so long."""
    both = "SELECT set_config('statement_timeout', :s, true), set_config('lock_timeout', :s, true)"
    connection.execute(text(both), {"s": time})


def _leave_a_standby(context: ExceptionContext) -> None:
    # A server that became a standby while connections to it were open goes on taking statements, and refuses to write:
    # new connections find the new primary.
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True
