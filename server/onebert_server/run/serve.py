"""Runs a server process: binds, listens while it loads, and shuts down gracefully."""

import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Callable
from types import FrameType

from onebert_server.engine.memory import keep_freed_memory
from onebert_server.logs import log_to_stderr
from onebert_server.run.engine_server import EngineServer
from onebert_server.settings import Settings
from onebert_store.errors import InvalidSettings

logger = logging.getLogger("onebert.serve")

# A name can resolve to an address family that this machine lacks, such as ::1 without IPv6.
_NOT_HERE = {errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT}


def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT; raises OneBertError if the server cannot start."""
    log_to_stderr(settings.log_level)
    sockets = bind(settings.host, settings.port)
    logger.info("loading %s", " and ".join(settings.base) or "the default base")
    keep_freed_memory()
    server = EngineServer(settings)
    # Set before uvicorn and ignored after it: uvicorn restores the previous handlers, and Python restores the system's
    # at exit unless signals are ignored. A late signal must not change the exit status.
    _on_stop(server.handle_exit)
    try:
        server.run(sockets=sockets)
    finally:
        _on_stop(signal.SIG_IGN)
    if server.failure is None:
        logger.info("stopped")
    if server.stuck:
        # A thread is still loading; a normal exit would unload libraries under it.
        sys.stdout.flush()
        os._exit(0)
    if server.failure is not None:
        raise server.failure


def bind(host: str, port: int) -> list[socket.socket]:
    """Binds every address of the host, all to one port."""
    try:
        addresses = dict.fromkeys(socket.getaddrinfo(host, port, type=socket.SOCK_STREAM))
    except (OSError, UnicodeError):
        raise InvalidSettings(f"ONEBERT_HOST: there is no address for {host}") from None
    sockets: list[socket.socket] = []
    for family, kind, protocol, _, address in addresses:
        # With port 0 the first socket picks a free port and the others reuse it.
        port = sockets[0].getsockname()[1] if sockets else port
        try:
            bound = socket.socket(family, kind, protocol)
            sockets.append(bound)
            bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family is socket.AF_INET6 and len(addresses) > 1:
                bound.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            bound.bind((address[0], port, *address[2:]))
        except OSError as error:
            sockets.pop().close()
            if error.errno not in _NOT_HERE:
                for other in sockets:
                    other.close()
                raise InvalidSettings(f"port {port} of {host} cannot be bound; is it in use?") from None
            logger.warning("%s is not an address of this machine", address[0])
    if not sockets:
        raise InvalidSettings(f"ONEBERT_HOST: {host} is not an address of this machine")
    return sockets


def _on_stop(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)
