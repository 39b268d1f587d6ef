"""Front ends beside the engine's process: started, started again when one dies, stopped without losing an answer."""

import asyncio
import itertools
import logging
import socket
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec
import typer
import uvicorn
from starlette.types import ASGIApp

from onebert_server import wire
from onebert_server.forwarding import forwarded_to
from onebert_server.front_desk import FrontDesk
from onebert_server.metrics import Sample
from onebert_server.routing import Parts
from onebert_server.serve import Server, greeting
from onebert_store.errors import InvalidSettings, OneBertError

logger = logging.getLogger("onebert.front_ends")

# -P: nothing is imported from the folder that the server happens to be started in.
COMMAND = (sys.executable, "-P", "-m", "onebert_server.front_end")
# Seconds before another one is started in place of one that died.
RESTART_DELAY = 1.0
# Seconds that a front end has to end, besides those that its requests have.
STOP_MARGIN = 5.0
# Requests that come for the app at once; each is a connection.
BACKLOG = 2048


class FrontEnds:
    """The front ends of a server, and the sockets that they come to, in a folder for this user alone."""

    def __init__(self, app: ASGIApp, parts: Parts) -> None:
        self._app = app
        self._parts = parts
        self._folder = tempfile.TemporaryDirectory(prefix="onebert-")
        self._servers: list[asyncio.AbstractServer] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._desks: list[FrontDesk] = []
        self._left: list[Sample] = []
        self._listening = asyncio.Semaphore(0)
        self._started = self._draining = self._stopping = False

    async def start(self, listener: socket.socket) -> None:
        """Starts them on a bound socket and waits until all of them listen.

        Raises:
            InvalidSettings: there can be no sockets to come to.
            OneBertError: one of them ended instead.
        """
        loop = asyncio.get_running_loop()
        paths = [str(Path(self._folder.name, name)) for name in ("engine", "app")]
        try:
            self._servers = [
                await loop.create_unix_server(lambda: self._desk().channel, paths[0], backlog=BACKLOG),
                await asyncio.start_unix_server(forwarded_to(self._app), paths[1], backlog=BACKLOG),
            ]
        except OSError:
            raise InvalidSettings("ONEBERT_FRONT_ENDS: the temporary folder takes no Unix sockets") from None
        setup = msgspec.msgpack.encode(self._setup(listener.fileno(), *paths))
        count = self._parts.settings.front_ends
        self._keepers = [loop.create_task(self._keep(setup, listener.fileno())) for _ in range(count)]
        listening = loop.create_task(self._all_listen(count))
        await asyncio.wait([listening, *self._keepers], return_when=asyncio.FIRST_COMPLETED)
        if not listening.done():
            listening.cancel()
            raise OneBertError("a front end could not be started; the log says why")
        self._started = True

    def drain(self) -> None:
        """Has every answer say that its connection ends."""
        if not self._draining:
            self._draining = True
            self._tell(wire.Drain())

    def stop(self) -> None:
        """Has them accept nothing more, answer what is there, and end."""
        self._stopping = True
        self._tell(wire.Stop())

    async def ended(self, timeout: float) -> bool:
        """Whether all of them have ended, after `timeout` seconds at most."""
        return not (self._keepers and (await asyncio.wait(self._keepers, timeout=timeout))[1])

    async def close(self) -> None:
        """Ends those that are left, and removes the sockets."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for server in self._servers:
            server.close()
        self._folder.cleanup()

    async def counted(self) -> Sequence[Sample]:
        """What all of them have counted, those that are gone included."""
        desks = list(self._desks)
        counted = await asyncio.gather(*(desk.counted() for desk in desks))
        # One that went meanwhile is among those that have left.
        still = (own for desk, own in zip(desks, counted, strict=True) if desk in self._desks)
        return [*self._left, *itertools.chain(*still)]

    def _setup(self, listener: int, engine_path: str, app_path: str) -> wire.Setup:
        settings = self._parts.settings
        return wire.Setup(
            listener=listener,
            engine_path=engine_path,
            app_path=app_path,
            tokenizer=self._parts.base.tokenizer.dumps(),
            api_keys=settings.api_keys,
            max_body_bytes=settings.max_body_bytes,
            receive_timeout=settings.receive_timeout,
            shutdown_timeout=settings.shutdown_timeout,
            log_level=settings.log_level,
        )

    async def _keep(self, setup: bytes, listener: int) -> None:
        """Runs one front end, again and again until they are stopped; at the start only once."""
        while not self._stopping:
            process = await asyncio.create_subprocess_exec(
                *COMMAND, stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL, pass_fds=[listener]
            )
            try:
                await process.communicate(setup)
            finally:
                if process.returncode is None:
                    process.kill()
            if not self._started:
                return
            if not self._stopping:
                logger.error("a front end ended with status %d; another one is started", process.returncode)
                await asyncio.sleep(RESTART_DELAY)

    async def _all_listen(self, count: int) -> None:
        for _ in range(count):
            await self._listening.acquire()

    def _desk(self) -> FrontDesk:
        desk = FrontDesk(self._parts.admission, self._listens, self._lost)
        self._desks.append(desk)
        return desk

    def _listens(self, desk: FrontDesk) -> None:
        """One that comes late hears what the others have heard."""
        self._listening.release()
        if self._draining:
            desk.channel.send(wire.Drain())
        if self._stopping:
            desk.channel.send(wire.Stop())

    def _lost(self, desk: FrontDesk) -> None:
        self._desks.remove(desk)
        self._left += desk.left()

    def _tell(self, frame: msgspec.Struct) -> None:
        for desk in self._desks:
            desk.channel.send(frame)


class EngineServer(Server):
    """The engine's process among front ends: uvicorn for signals and the app's start and end, without a listener."""

    def __init__(self, config: uvicorn.Config, parts: Parts, app: ASGIApp) -> None:
        super().__init__(config, parts)
        self._fronts = FrontEnds(app, parts)
        parts.counted_elsewhere = self._fronts.counted

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts the front ends on the sockets, then prints one line."""
        await super().startup([])
        [listener] = sockets or []
        try:
            await self._fronts.start(listener)
        except BaseException:
            await self._fronts.close()
            await super().shutdown([])
            raise
        typer.echo(greeting(self._parts, listener))

    async def on_tick(self, counter: int) -> bool:
        """Passes on what a signal said."""
        if self._parts.draining:
            self._fronts.drain()
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Closes the door, lets the front ends finish, then ends the engine."""
        for listener in sockets or []:
            listener.close()
        self._fronts.stop()
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._parts.settings.shutdown_timeout + STOP_MARGIN
        while not (await self._fronts.ended(0.1) or self.force_exit or loop.time() >= deadline):
            pass
        await self._fronts.close()
        await super().shutdown([])
