"""Runs the engine process of a server that may have front ends: it listens only until the front ends do."""

import asyncio
import socket
from typing import TYPE_CHECKING

from onebert_server.http.web import WebApp, uvicorn_config
from onebert_server.remote.unix.http import forwarded
from onebert_server.remote.unix.keeper import FrontEnds
from onebert_server.run.uvicorn_server import Server

if TYPE_CHECKING:
    from onebert_server.runtime import Runtime

# Seconds that a front end gets to exit, in addition to the shutdown timeout for its requests.
STOP_MARGIN = 5.0


class EngineServer(Server):
    """The engine process; starts front ends on the bound sockets once the runtime, and so their number, is there."""

    _fronts: FrontEnds | None = None
    _listeners: tuple[socket.socket, ...] = ()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        # Duplicates, because uvicorn closes its sockets when it stops listening and front ends start later.
        self._listeners = tuple(listener.dup() for listener in sockets or [])
        await super().startup(sockets)

    async def ready(self, runtime: "Runtime", app: WebApp) -> None:
        """Starts the front ends, if any, and leaves new connections to them; a stop signal cancels the start."""
        if not runtime.settings.front_ends:
            self._close_listeners()
            return await super().ready(runtime, app)
        config = uvicorn_config(forwarded(app), self._settings.shutdown_timeout)
        self._fronts = FrontEnds(runtime, self.protocols(config))
        starting = asyncio.create_task(self._fronts.start(self._listeners))
        while not (starting.done() or self.draining):
            await asyncio.wait([starting], timeout=0.1)
        starting.cancel()
        await starting
        await super().ready(runtime, app)
        for server in self.servers:
            server.close()

    async def on_tick(self, counter: int) -> bool:
        if self._fronts is not None:
            if self.draining:
                self._fronts.drain()
            self.should_exit = self.should_exit or self._fronts.failure is not None
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        self._close_listeners()
        if self._fronts is not None:
            self.failure = self.failure or self._fronts.failure
            await self._stop(self._fronts)
        await super().shutdown(sockets)

    def _close_listeners(self) -> None:
        for listener in self._listeners:
            listener.close()

    async def _stop(self, fronts: FrontEnds) -> None:
        fronts.stop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.shutdown_timeout + STOP_MARGIN
        while not (await fronts.ended(0.1) or self.force_exit or loop.time() >= deadline):
            pass
        await fronts.close()
