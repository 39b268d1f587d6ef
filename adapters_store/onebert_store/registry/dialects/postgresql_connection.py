"""Connections to PostgreSQL that never wait for ever, whatever has become of the server or of the network."""

import logging
from collections.abc import Generator
from time import monotonic
from typing import Any

import psycopg
from psycopg.abc import RV, PQGen
from psycopg.conninfo import conninfo_to_dict

from onebert_store.errors import InvalidSettings

log = logging.getLogger(__name__)

CONNECT_S = 3
"""Seconds to connect to one of the hosts."""
STATEMENT_S = 10
"""Seconds after which the server itself ends a statement, or a wait for a lock."""
ANSWER_MS = 12_000
"""Milliseconds without an answer after which the server, or the network, counts as gone: libpq's `tcp_user_timeout`."""
LOG_S = 10.0
"""Seconds between two lines of the log that say why there is no connection."""

# What a stopped replica holds comes free by these: its connection when the machine is gone, its locks when it hangs.
_OPTIONS = (
    f"-c statement_timeout={STATEMENT_S}s -c lock_timeout={STATEMENT_S}s -c idle_in_transaction_session_timeout=600s"
    " -c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
)


class PatientConnection(psycopg.Connection[Any]):
    """A connection that is closed when an answer does not come on; libpq alone would wait for ever.

    Attributes:
        patience: seconds without any part of an answer.
    """

    patience: float

    def wait(self, gen: PQGen[RV], *arguments: Any, **options: Any) -> RV:
        """Waits for what `gen` does with the server, as psycopg's own, and gives up after `patience` of silence."""
        return super().wait(self._in_time(gen), *arguments, **options)

    def _in_time(self, gen: PQGen[RV]) -> Generator[Any, Any, RV]:
        end = monotonic() + self.patience
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                # Nothing is ready where psycopg has woken up to look at the time; a long answer comes piece by piece.
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
    """What to connect with, by libpq's names: of the URL, and beside it the limits of this file.

    Raises:
        InvalidSettings: the URL is none; the error does not repeat it.
    """
    try:
        given = conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise InvalidSettings("a PostgreSQL registry is postgresql://USER:PASSWORD@HOST:PORT/DATABASE") from None
    own = {"connect_timeout": CONNECT_S, "tcp_user_timeout": ANSWER_MS, "application_name": "onebert"}
    # What the URL says is read last by the server, and wins.
    return {**own, **given, "client_encoding": "utf8", "options": f"{_OPTIONS} {given.get('options') or ''}"}


def place(parameters: dict[str, Any]) -> str:
    """Where `parse` says that a database is, for people: nothing of its login."""
    said = (f"{name} {parameters[name]}" for name in ("host", "port", "dbname") if parameters.get(name))
    return ", ".join(["PostgreSQL", *said])


class Connector:
    """Makes connections; the log has why there is none, for a client is not told where the database is.

    Args:
        parameters: as `parse` gives them.
    """

    def __init__(self, parameters: dict[str, Any]) -> None:
        self._parameters = parameters
        self._next_line = 0.0

    def __call__(self) -> PatientConnection:
        """A new connection."""
        try:
            connection = PatientConnection.connect(**self._parameters)
        except psycopg.Error as error:
            # Clients can ask for a connection as often as they like.
            if monotonic() >= self._next_line:
                self._next_line = monotonic() + LOG_S
                log.warning("the registry's database: %s", " ".join(str(error).split()))
            raise
        connection.patience = int(self._parameters["tcp_user_timeout"]) / 1000
        return connection
