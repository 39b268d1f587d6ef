"""Accepts connections: many in a turn of the event loop, where uvloop accepts one."""

import asyncio
import errno
import logging
import socket
from collections.abc import Callable
from functools import partial
from typing import Any, cast

import uvicorn

from onebert_server.logs import Seldom

_seldom = Seldom(logging.getLogger("onebert.http"))

# Connections that one turn accepts, in about a millisecond; processes that share the socket accept the others.
AT_ONCE = 16
# Connections that the kernel keeps until they are accepted.
BACKLOG = 2048
# Seconds without accepting once descriptors or memory are used up.
PAUSE = 1.0
_USED_UP = {errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM}


class Listener:
    """Gives each connection to a bound socket a protocol of `make`, until `close`; stands for uvicorn's server.

    Those that it does not admit are closed.
    """

    _pause: asyncio.TimerHandle | None = None

    def __init__(
        self,
        bound: socket.socket,
        make: Callable[[], asyncio.Protocol],
        admits: Callable[[socket.socket], bool] = lambda _: True,
    ) -> None:
        self._loop, self._socket, self._make, self._admits = asyncio.get_running_loop(), bound, make, admits
        self._opening: set[asyncio.Task[Any]] = set()
        bound.setblocking(False)
        bound.listen(BACKLOG)
        self._loop.add_reader(bound.fileno(), self._accept)

    def close(self) -> None:
        if self._socket.fileno() < 0:
            return
        if self._pause is not None:
            self._pause.cancel()
        self._loop.remove_reader(self._socket.fileno())
        self._socket.close()

    async def wait_closed(self) -> None:
        """uvicorn waits for the connections itself."""

    def _accept(self) -> None:
        try:
            for _ in range(AT_ONCE):
                connection, _ = self._socket.accept()
                if not self._admits(connection):
                    connection.close()
                    continue
                opening = self._loop.create_task(self._loop.connect_accepted_socket(self._make, connection))
                self._opening.add(opening)
                opening.add_done_callback(self._opened)
        except (BlockingIOError, ConnectionAbortedError):
            pass
        except OSError as error:
            if error.errno not in _USED_UP:
                raise
            _seldom.warning("no connection is accepted for a second: %s", error.strerror)
            self._loop.remove_reader(self._socket.fileno())
            self._pause = self._loop.call_later(PAUSE, self._loop.add_reader, self._socket.fileno(), self._accept)

    def _opened(self, opening: asyncio.Task[Any]) -> None:
        self._opening.discard(opening)
        if not opening.cancelled() and (error := opening.exception()):
            _seldom.warning("a connection was not opened: %s", type(error).__name__)


class ListeningServer(uvicorn.Server):
    """A uvicorn server that accepts by a `Listener` for each socket."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup([])
        make = self.protocols(self.config)
        self.servers = [cast(Any, Listener(bound, make)) for bound in sockets or ()]

    def protocols(self, config: uvicorn.Config) -> Callable[[], asyncio.Protocol]:
        """Returns what makes the protocols of this server's connections for the app of a configuration."""
        if not config.loaded:
            config.load()
        given = {"config": config, "server_state": self.server_state, "app_state": self.lifespan.state}
        return partial(cast(Any, config.http_protocol_class), **given)
