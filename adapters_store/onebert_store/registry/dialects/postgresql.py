"""The registry in PostgreSQL, through psycopg; any number of replicas share it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from math import inf
from time import monotonic
from typing import Any

import psycopg
from sqlalchemy import Connection, ExceptionContext, create_engine, event, inspect, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as NoConnectionLeft

from onebert_store.errors import OneBertError, StorageFull, StorageUnavailable, StoreCorrupt
from onebert_store.registry.dialects.database import Database, Listener, Lock
from onebert_store.registry.dialects.postgresql_connection import STATEMENT_S, Connector, parse, place

# Advisory lock keys: OneBERT's number, then one number per lock.
_ONEBERT = 0x1BE27
_BLOBS, _SCHEMA = 1, 2
_CHANNEL = "onebert_changes"
_SHARED, _EXCLUSIVE = "pg_advisory_xact_lock_shared", "pg_advisory_xact_lock"

# Seconds that a sweep waits for the uploads that began before it.
SWEEP_WAIT_S = 120
# Seconds that a schema change may take, and that another replica waits for it.
MIGRATION_S = 600

# Seconds that a statement over a whole table may take, as when a store is copied.
WHOLE_TABLES_S = 3600

_READ_ONLY = "25006"
_CORRUPT = {"XX001", "XX002", "42P01", "42703"}
# Keys are a whole SQLSTATE or its class (the first two characters).
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


class PostgresDatabase(Database):
    """A database of a PostgreSQL server.

    Transactions that write are READ COMMITTED. `adding` takes its lock in the same transaction that writes the row: if
    the connection and the lock are lost, the row is lost with them.
    """

    shared = True
    seconds = "EXTRACT(EPOCH FROM clock_timestamp())::float8"

    def __init__(self, url: str) -> None:
        """Parses the URL without connecting; raises InvalidSettings if the URL is not valid."""
        parameters = parse(url)
        self._connect = Connector(parameters)
        engine = create_engine(
            "postgresql+psycopg://",
            creator=self._connect,
            # Notices a connection that the server has closed meanwhile, before a statement uses it.
            pool_pre_ping=True,
            pool_timeout=STATEMENT_S,
            use_native_hstore=False,
        )
        event.listen(engine, "handle_error", _leave_a_standby)
        event.listen(engine, "begin", _begin)
        readers = engine.execution_options(isolation_level="REPEATABLE READ", postgresql_readonly=True)
        super().__init__(place(parameters), readers, engine.execution_options(isolation_level="READ COMMITTED"))

    @contextmanager
    def owned(self) -> Iterator[None]:
        yield

    @contextmanager
    def joined(self) -> Iterator[Callable[[], bool]]:
        yield lambda: False

    @contextmanager
    def typed_errors(self) -> Iterator[None]:
        try:
            yield
        except NoConnectionLeft as error:
            raise _unavailable("all connections to it are in use") from error
        except DBAPIError as error:
            if typed := _typed(error.orig):
                raise typed from error
            raise

    def adding(self, until: float = inf) -> AbstractContextManager[Lock]:
        return self._locked(_SHARED, until=until)

    def sweeping(self) -> AbstractContextManager[Lock]:
        return self._locked(_EXCLUSIVE, SWEEP_WAIT_S)

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        with _patient(connection, MIGRATION_S):
            _lock(connection, _EXCLUSIVE, _SCHEMA)
            yield

    def unhurried(self, connection: Connection) -> AbstractContextManager[None]:
        return _patient(connection, WHOLE_TABLES_S)

    def announce(self, connection: Connection) -> None:
        connection.execute(text(f"NOTIFY {_CHANNEL}"))

    @contextmanager
    def listening(self) -> Iterator[Listener]:
        with _typed_errors():
            connection = self._connect()

        def wait(seconds: float) -> bool:
            with _typed_errors():
                # Notifications that arrive together count as one.
                return any(True for _ in connection.notifies(timeout=seconds, stop_after=1))

        try:
            with _typed_errors():
                connection.autocommit = True
                connection.execute(f"LISTEN {_CHANNEL}")
            yield wait
        finally:
            connection.close()

    def schema_mark(self, connection: Connection) -> int:
        """Raises StoreCorrupt if the table is another program's."""
        # Not `to_regclass`, which may miss a table that another process made after this transaction began.
        if not inspect(connection).has_table("alembic_version"):
            return 0
        mark = connection.scalar(text("SELECT version_num FROM alembic_version")) or "0"
        if not mark.isdecimal():
            raise StoreCorrupt("the database has the tables of another program; give OneBERT one of its own")
        return int(mark)

    def integrity_errors(self, connection: Connection) -> list[str]:
        """Lists indexes that PostgreSQL failed to build; it enforces rows and references itself."""
        bad = (
            "SELECT relname FROM pg_index JOIN pg_class ON pg_class.oid = indexrelid"
            " WHERE NOT indisvalid AND relnamespace = current_schema()::regnamespace"
        )
        return [f"the index {name} is not valid" for name in connection.scalars(text(bad))]

    @contextmanager
    def _locked(self, function: str, wait_s: int = 0, until: float = inf) -> Iterator[Lock]:
        with self.typed_errors():
            connection = self.writers.execution_options(onebert_until=until).connect()

        # The transaction holds the lock: whoever loses the connection loses both.
        @contextmanager
        def writing() -> Iterator[Connection]:
            with self.typed_errors(), transaction:
                yield connection

        def check() -> None:
            with self.typed_errors():
                connection.execute(text("SELECT 1"))

        try:
            with self.typed_errors():
                transaction = connection.begin()
                with _patient(connection, wait_s) if wait_s else nullcontext():
                    _lock(connection, function, _BLOBS)
            yield Lock(writing, check)
        finally:
            # Closing rolls back and so releases the lock; a lost connection has done both already.
            with suppress(SQLAlchemyError):
                connection.close()


@contextmanager
def _typed_errors() -> Iterator[None]:
    try:
        yield
    except psycopg.Error as error:
        raise _typed(error) or _unavailable("the connection is lost") from error


def _lock(connection: Connection, function: str, lock: int) -> None:
    connection.execute(text(f"SELECT {function}({_ONEBERT}, {lock})"))


@contextmanager
def _patient(connection: Connection, seconds: int) -> Iterator[None]:
    """Raises the time limits of the connection's transaction to `seconds` until the block ends."""
    driver: Any = connection.connection.driver_connection
    before, driver.patience = driver.patience, driver.patience + seconds
    try:
        _limit(connection, f"{seconds}s")
        yield
    finally:
        driver.patience = before


def _typed(error: BaseException | None) -> OneBertError | None:
    """Maps a driver error to a typed one; None if the error is a bug in this code."""
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
    # Otherwise the connection's own limit, STATEMENT_S, comes first.
    if seconds < STATEMENT_S:
        # PostgreSQL reads 0 as no limit.
        _limit(connection, f"{max(1.0, seconds * 1000):.0f}ms")


def _limit(connection: Connection, time: str) -> None:
    both = "SELECT set_config('statement_timeout', :s, true), set_config('lock_timeout', :s, true)"
    connection.execute(text(both), {"s": time})


def _leave_a_standby(context: ExceptionContext) -> None:
    # A primary that became a standby keeps its connections open but refuses writes. New connections find the new
    # primary.
    if getattr(context.original_exception, "sqlstate", None) == _READ_ONLY:
        context.is_disconnect = True
