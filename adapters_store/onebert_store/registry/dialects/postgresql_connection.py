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

# What a stopped replica holds comes free by these: its connection when the machine is gone, its locks when it hangs.
_OPTIONS = (
    f"-c statement_timeout={STATEMENT_S}s -c lock_timeout={STATEMENT_S}s -c idle_in_transaction_session_timeout=600s"
    " -c tcp_keepalives_idle=30 -c tcp_keepalives_interval=10 -c tcp_keepalives_count=3"
)


class PatientConnection(psycopg.Connection[Any]):
    """A connection that is closed when an answer does not come; libpq alone would wait for ever.

    Attributes:
        patience: seconds for one answer.
    """

    patience: float

    def wait(self, gen: PQGen[RV], *arguments: Any, **options: Any) -> RV:
        """Waits for what `gen` does with the server, as psycopg's own, and for no longer than `patience`."""
        return super().wait(self._in_time(gen), *arguments, **options)

    def _in_time(self, gen: PQGen[RV]) -> Generator[Any, Any, RV]:
        end = monotonic() + self.patience
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                # Nothing is ready where psycopg has woken up to look at the time.
                if not ready and monotonic() > end:
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


def connect(parameters: dict[str, Any]) -> PatientConnection:
    """A new connection; the log has why there is none, for a client is not told where the database is."""
    try:
        connection = PatientConnection.connect(**parameters)
        connection.patience = int(parameters["tcp_user_timeout"]) / 1000
        return connection
    except psycopg.Error as error:
        log.warning("the registry's database: %s", " ".join(str(error).split()))
        raise
