"""Shared state of a process's connections: limits on their number and idle time, and eviction of idle ones."""

import logging
import resource
from typing import Protocol

from onebert_server.logs import Seldom

logger = logging.getLogger("onebert.http")

# Seconds for a complete request head, counted from when the connection begins to wait for it.
HEAD_TIMEOUT = 10.0
# Seconds in which a client must read some of its response.
SEND_TIMEOUT = 30.0
# Descriptors reserved for the database, files and sockets between a server's processes.
OTHER_DESCRIPTORS = 64


class Connection(Protocol):
    """A connection that can be closed to make room."""

    def abandon(self) -> None: ...


class Connections:
    """The connections of a process; `head_timeout` and `send_timeout` are in seconds.

    `waiting`: connections that wait for their client (for a request, for more of a body, or for the client to read the
    last response), longest wait first.
    """

    def __init__(self, receive_timeout: float) -> None:
        self.head_timeout = min(HEAD_TIMEOUT, receive_timeout)
        self.send_timeout = min(SEND_TIMEOUT, receive_timeout)
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
