"""Runs the engine's process among front ends: it listens until they do, then it has no listener of its own."""

import asyncio
import socket
from typing import TYPE_CHECKING

from starlette.types import ASGIApp

from onebert_server.front_ends.keeper import FrontEnds
from onebert_server.run.uvicorn_server import Server

if TYPE_CHECKING:
    from onebert_server.runtime import Runtime

# Seconds that a front end has to end, besides those that its requests have.
STOP_MARGIN = 5.0


class EngineServer(Server):
    """The engine's process among front ends; they start when the runtime is open, on the sockets that were bound."""

    _fronts: FrontEnds | None = None
    _listeners: tuple[socket.socket, ...] = ()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens until the front ends do."""
        # uvicorn closes its sockets when it stops listening; front ends that are started later need open ones.
        self._listeners = tuple(listener.dup() for listener in sockets or [])
        await super().startup(sockets)

    async def ready(self, runtime: "Runtime", app: ASGIApp) -> None:
        """Starts the front ends, and leaves new connections to them; a signal meanwhile ends it.

        Raises:
            OneBertError: they cannot be started.
        """
        self._fronts = FrontEnds(runtime)
        starting = asyncio.create_task(self._fronts.start(self._listeners, app))
        while not (starting.done() or self.draining):
            await asyncio.wait([starting], timeout=0.1)
        starting.cancel()
        await starting
        await super().ready(runtime, app)
        for server in self.servers:
            server.close()

    async def on_tick(self, counter: int) -> bool:
        """Tells the front ends what a signal has told this process."""
        if self._fronts is not None:
            if self.draining:
                self._fronts.drain()
            self.should_exit = self.should_exit or self._fronts.failure is not None
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stops listening, lets the front ends finish, then ends the engine."""
        for listener in self._listeners:
            listener.close()
        if self._fronts is not None:
            self.failure = self.failure or self._fronts.failure
            await self._stop(self._fronts)
        await super().shutdown(sockets)

    async def _stop(self, fronts: FrontEnds) -> None:
        fronts.stop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._settings.shutdown_timeout + STOP_MARGIN
        while not (await fronts.ended(0.1) or self.force_exit or loop.time() >= deadline):
            pass
        await fronts.close()
