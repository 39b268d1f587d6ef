"""PostgreSQL connections with a time limit on every wait, even if the server hangs or the network is down."""

import logging
from collections.abc import Generator
from time import monotonic
from typing import Any

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict

from onebert_store.errors import InvalidSettings

log = logging.getLogger(__name__)

# Seconds to connect to one of the hosts.
CONNECT_S = 3
# Seconds after which the server ends a statement or a wait for a lock.
STATEMENT_S = 10
# Milliseconds of silence after which the connection is given up; also libpq's `tcp_user_timeout`.
ANSWER_MS = 12_000
# Seconds between two log lines about a failed connection.
LOG_S = 10.0

# These release the resources of a stopped replica: its connection if the machine is gone, its locks if it hangs.
_OPTIONS = (
    f"-c statement_timeout={STATEMENT_S}s -c lock_timeout={STATEMENT_S}s -c idle_in_transaction_session_timeout=600s"
    " -c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
)


class PatientConnection(psycopg.Connection[Any]):
    """Closes itself after `patience` seconds without any part of a reply; libpq alone would wait for ever."""

    patience: float

    def wait(self, gen: PQGen[RV], *arguments: Any, **options: Any) -> RV:
        """Waits for the server like psycopg, but raises OperationalError after `patience` seconds of silence."""
        return super().wait(self._in_time(gen), *arguments, **options)

    def _in_time(self, gen: PQGen[RV]) -> Generator[Any, Any, RV]:
        end = monotonic() + self.patience
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                # psycopg wakes up with nothing ready to check the time; each piece of a long reply restarts the clock.
                if ready:
                    end = monotonic() + self.patience
                elif monotonic() > end:
                    gen.close()
                    self.close()
                    raise psycopg.OperationalError("no answer in time")
                wanted = gen.send(ready)
        except StopIteration as done:
            result: RV = done.value
            return result


def parse(url: str) -> dict[str, Any]:
    """Adds this file's limits to the URL's parameters; raises InvalidSettings without repeating the URL."""
    try:
        from_url = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise InvalidSettings("a PostgreSQL registry is postgresql://USER:PASSWORD@HOST:PORT/DATABASE") from None
    defaults = {"connect_timeout": CONNECT_S, "tcp_user_timeout": ANSWER_MS, "application_name": "onebert"}
    # The server reads the URL's options last, so they win.
    return {**defaults, **from_url, "client_encoding": "utf8", "options": f"{_OPTIONS} {from_url.get('options') or ''}"}


def place(parameters: dict[str, Any]) -> str:
    """Describes the database for people, without user or password."""
    parts = (f"{name} {parameters[name]}" for name in ("host", "port", "dbname") if parameters.get(name))
    return ", ".join(["PostgreSQL", *parts])


class Connector:
    """Makes connections; logs failures here, because clients must not learn where the database is."""

    def __init__(self, parameters: dict[str, Any]) -> None:
        self._parameters = parameters
        self._next_line = 0.0

    def __call__(self) -> PatientConnection:
        try:
            connection = PatientConnection.connect(**self._parameters)
        except psycopg.Error as error:
            # Limits log lines: clients can trigger connection attempts at any rate.
            if monotonic() >= self._next_line:
                self._next_line = monotonic() + LOG_S
                log.warning("the registry's database: %s", " ".join(str(error).split()))
            raise
        connection.patience = int(self._parameters["tcp_user_timeout"]) / 1000
        return connection
