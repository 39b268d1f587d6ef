"""Shared state of a process's connections: limits on their number and idle time, and eviction of idle ones."""

import logging
import resource
from contextlib import suppress
from typing import Protocol

from onebert_server.logs import Seldom

logger = logging.getLogger("onebert.http")

# Descriptors reserved for the database, files and sockets between a server's processes.
OTHER_DESCRIPTORS = 64
MAX_CONNECTIONS = 2**16


class Connection(Protocol):
    """A connection that can be closed to make room."""

    def abandon(self) -> None: ...


class Connections:
    """The connections of a process.

    `waiting`: connections that wait for their client (for a request, for more of a body, or for the client to read the
    last response), longest wait first.
    """

    def __init__(self) -> None:
        self.most = most_connections()
        self.waiting: dict[Connection, None] = {}
        self.log, self._full = Seldom(logger), Seldom(logger)

    def make_room(self) -> bool:
        self._full.warning("%d connections are open, as many as the limit on descriptors allows", self.most)
        if self.waiting:
            next(iter(self.waiting)).abandon()
            return True
        return False


def most_connections() -> int:
    """Half of the descriptors that the process may have, since a request may need one beside its connection's."""
    descriptors, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # A system may have a limit of its own below the hard one.
    with suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
        descriptors = hard
    half = (descriptors - OTHER_DESCRIPTORS) // 2
    return MAX_CONNECTIONS if descriptors == resource.RLIM_INFINITY else min(max(16, half), MAX_CONNECTIONS)
