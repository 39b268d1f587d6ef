"""What the connections of one process share: how many there may be, how long they may wait, and who makes room."""

import logging
import resource
from typing import Protocol

from onebert_server.logs import Seldom

logger = logging.getLogger("onebert.http")

# Seconds for the head of a request, from the moment at which the connection begins to wait for one.
HEAD_TIMEOUT = 10.0
# Seconds in which a client has to take some of its answer.
SEND_TIMEOUT = 30.0
# Descriptors that are not connections: the database, files, the sockets between a server's processes.
OTHER_DESCRIPTORS = 64


class Connection(Protocol):
    """A connection, as the others see it."""

    def abandon(self) -> None:
        """Closes the connection, which waits for its client."""


class Connections:
    """What the connections of one process share.

    Attributes:
        head_timeout: seconds that a connection may wait for the head of a request.
        send_timeout: seconds in which a client has to take some of its answer.
        most: connections that may be open.
        log: for refusals, which clients can cause at will.
        waiting: those that wait for their client: for a request, for the next part of a body, or for an answer to be
            taken that is the last one. The one that waits longest is first.
    """

    def __init__(self, receive_timeout: float) -> None:
        self.head_timeout = min(HEAD_TIMEOUT, receive_timeout)
        self.send_timeout = min(SEND_TIMEOUT, receive_timeout)
        self.most = most_connections()
        self.waiting: dict[Connection, None] = {}
        self.log, self._full = Seldom(logger), Seldom(logger)

    def make_room(self) -> bool:
        """Closes the connection that waits longest; whether there was one."""
        self._full.warning("%d connections are open, as many as the limit on descriptors allows", self.most)
        if self.waiting:
            next(iter(self.waiting)).abandon()
            return True
        return False


def most_connections() -> int:
    """Half of the descriptors that the process may have: a request may need one beside its connection's."""
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**16 if descriptors == resource.RLIM_INFINITY else max(16, (descriptors - OTHER_DESCRIPTORS) // 2)
