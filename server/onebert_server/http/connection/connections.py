"""Shared state of a process's connections: limits on their number and idle time, and eviction of idle ones."""

import logging
import resource
from typing import Protocol

from onebert_server.logs import Seldom

logger = logging.getLogger("onebert.http")

# Descriptors reserved for the database, files and sockets between a server's processes.
OTHER_DESCRIPTORS = 64


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
    """Half of the process's descriptors, since a request may need one in addition to its connection's."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**16 if descriptors == resource.RLIM_INFINITY else max(16, (descriptors - OTHER_DESCRIPTORS) // 2)
