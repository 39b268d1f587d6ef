"""Runs the app on uvicorn: binds first, loads, listens when ready, and stops without losing an answer."""

import signal
import socket
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING

import typer
import uvicorn

from onebert_server.memory import keep_freed_memory
from onebert_server.settings import Settings
from onebert_server.web import log_to_stderr, uvicorn_config
from onebert_store.errors import InvalidSettings

if TYPE_CHECKING:
    from onebert_server.routing import Parts


def serve(settings: Settings) -> None:
    """Serves until SIGTERM or SIGINT.

    Raises:
        OneBertError: the server cannot start.
    """
    log_to_stderr(settings.log_level)
    bound = _bind(settings.host, settings.port)
    keep_freed_memory()
    # Imports torch, which takes seconds: an address that is taken is said before.
    from onebert_server.app import create_app  # noqa: PLC0415

    app = create_app(settings)
    config = uvicorn_config(app, settings.shutdown_timeout)
    parts: Parts = app.state.parts
    if settings.front_ends:
        from onebert_server.engine_server import EngineServer  # noqa: PLC0415

        server: Server = EngineServer(config, parts, app)
    else:
        server = Server(config, parts)
    # uvicorn gives back the handlers that were there before, and Python those of the system at its end, unless they
    # are to be ignored: a signal that comes so late must not change how the process ends.
    _on_stop(server.handle_exit)
    try:
        server.run(sockets=[bound])
    finally:
        _on_stop(signal.SIG_IGN)


class Server(uvicorn.Server):
    """uvicorn that says when it listens, says it is leaving before it leaves, and ends with exit code 0."""

    def __init__(self, config: uvicorn.Config, parts: "Parts") -> None:
        super().__init__(config)
        self._parts = parts
        self._exit_at = float("inf")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens, then prints one line."""
        await super().startup(sockets)
        if sockets and self.started:
            typer.echo(greeting(self._parts, sockets[0]))

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Leaves readiness at once and the socket after the drain delay; SIGINT does not wait, a second one forces.

        uvicorn's own handler would raise the signal again at the end and exit with its number.
        """
        self.force_exit = self._parts.draining and sig == signal.SIGINT
        self._parts.draining = True
        delay = self._parts.settings.drain_delay if sig == signal.SIGTERM else 0.0
        self._exit_at = min(self._exit_at, time.monotonic() + delay)

    async def on_tick(self, counter: int) -> bool:
        """uvicorn asks ten times a second whether to stop."""
        self.should_exit = self.should_exit or time.monotonic() >= self._exit_at
        return await super().on_tick(counter)


def _on_stop(handler: Callable[[int, FrameType | None], None] | signal.Handlers) -> None:
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, handler)


def _bind(host: str, port: int) -> socket.socket:
    """Takes the address before the long work of loading; nobody can connect until uvicorn listens."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound = socket.socket(family, kind, protocol)
        bound.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound.bind(address)
    except OSError:
        raise InvalidSettings(f"port {port} of {host} cannot be bound; is it in use?") from None
    return bound


def greeting(parts: "Parts", listener: socket.socket) -> str:
    """The one line that a server prints."""
    host, port = listener.getsockname()[:2]
    where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    spec, settings, counts = parts.base.spec, parts.settings, parts.directory.counts()
    tasks = f"{counts['tasks']} task{'' if counts['tasks'] == 1 else 's'}"
    return f"Listening on {where}: {spec.name}, {parts.base.dtype_name} on {settings.device}, {tasks}"
