"""Runs the engine's process among front ends: what uvicorn does for one process, without a listener of its own."""

import asyncio
import socket

import typer
import uvicorn
from starlette.types import ASGIApp

from onebert_server.routing import Parts
from onebert_server.serve import Server, greeting

# Seconds that a front end has to end, besides those that its requests have.
STOP_MARGIN = 5.0


class EngineServer(Server):
    """The engine's process among front ends: uvicorn for signals and the app's start and end, without a listener."""

    def __init__(self, config: uvicorn.Config, parts: Parts, app: ASGIApp) -> None:
        super().__init__(config, parts)
        self._app = app
        self._fronts = parts.front_ends

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the front ends on the sockets, then prints one line; a signal meanwhile ends it.

        Raises:
            OneBertError: they cannot be started.
        """
        await super().startup([])
        [listener] = sockets or []
        starting = asyncio.create_task(self._fronts.start(listener, self._app))
        while not (starting.done() or self._parts.draining):
            await asyncio.wait([starting], timeout=0.1)
        starting.cancel()
        try:
            await starting
        except BaseException:
            # uvicorn then returns. Only here: had they started all the same, it would have to shut down.
            self.should_exit = self._parts.draining
            await self._fronts.close()
            await super().shutdown([])
            if not self.should_exit:
                raise
        else:
            typer.echo(greeting(self._parts, listener))

    async def on_tick(self, counter: int) -> bool:
        """Passes on what a signal said."""
        if self._parts.draining:
            self._fronts.drain()
        self.should_exit = self.should_exit or self._fronts.failure is not None
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the door, lets the front ends finish, then ends the engine.

        Raises:
            OneBertError: the front ends are why.
        """
        for listener in sockets or []:
            listener.close()
        self._fronts.stop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._parts.settings.shutdown_timeout + STOP_MARGIN
        while not (await self._fronts.ended(0.1) or self.force_exit or loop.time() >= deadline):
            pass
        await self._fronts.close()
        await super().shutdown([])
        if self._fronts.failure is not None:
            raise self._fronts.failure
