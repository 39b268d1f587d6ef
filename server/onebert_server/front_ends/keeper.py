"""Starts the front ends, restarts one that dies, and stops them without losing a reply."""

import asyncio
import logging
import shutil
import socket
import sys
import tempfile
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from errno import ECONNREFUSED
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from starlette.types import ASGIApp

from onebert_server.front_ends import wire
from onebert_server.front_ends.desk import FrontDesk
from onebert_server.front_ends.forwarding import forwarded_to
from onebert_store.errors import InvalidSettings, OneBertError

if TYPE_CHECKING:
    from onebert_server.runtime import Runtime

logger = logging.getLogger("onebert.front_ends")

# -P keeps the current directory off the import path.
COMMAND = (sys.executable, "-P", "-m", "onebert_server.front_ends.child")
# Front ends do not read these settings: a directory, and addresses that may contain a password.
NOT_OF_FRONT_ENDS = {"data_dir", "registry", "blobs"}
# Seconds in which all front ends must listen.
START_TIMEOUT = 60.0
# Seconds to wait before a dead front end is restarted.
RESTART_DELAY = 1.0
# After MAX_ENDS deaths of one front end within ENDS_WITHIN seconds the server exits, since a restart would not help.
MAX_ENDS = 5
ENDS_WITHIN = 60.0
# Name prefix of the socket directories in the shared temporary directory.
PREFIX = "onebert-"
# Connections in the listen backlog; each connection to the app carries one request.
BACKLOG = 2048


class FrontEnds:
    """The front ends of a server and their Unix sockets; `failure` is set when a front end has died repeatedly."""

    def __init__(self, runtime: "Runtime") -> None:
        self.failure: OneBertError | None = None
        self._runtime = runtime
        self._settings = runtime.settings
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._servers: list[asyncio.AbstractServer] = []
        self._keepers: list[asyncio.Task[None]] = []
        self._desks: list[FrontDesk] = []
        self._listening = asyncio.Semaphore(0)
        self._started = self._draining = self._stopping = False

    async def start(self, listeners: Sequence[socket.socket], app: ASGIApp) -> None:
        """Starts the front ends on shared, bound sockets and waits until all of them listen.

        Raises:
            InvalidSettings: the temporary directory is not writable or does not support sockets.
            OneBertError: a front end exited, or not all of them listened within `START_TIMEOUT`.
        """
        keys = self._runtime.keys
        keys.tell(lambda: self._tell(wire.keys(keys)))
        loop, count = asyncio.get_running_loop(), self._settings.front_ends
        numbers = [listener.fileno() for listener in listeners]
        setup = await self._open(numbers, app)
        self._keepers = [loop.create_task(self._keep(setup, numbers)) for _ in range(count)]
        listening = loop.create_task(self._all_listen(count))
        try:
            done, _ = await asyncio.wait(
                [listening, *self._keepers], timeout=START_TIMEOUT, return_when=asyncio.FIRST_COMPLETED
            )
            if not done:
                raise OneBertError(f"the front ends do not listen after {START_TIMEOUT:.0f} seconds")
            if not listening.done():
                raise OneBertError("a front end could not be started; the log says why")
        finally:
            listening.cancel()
        self._started = True

    def drain(self) -> None:
        """Makes the front ends send `Connection: close` with every reply."""
        if not self._draining:
            self._draining = True
            self._tell(wire.Drain())

    def stop(self) -> None:
        """Makes the front ends stop accepting, finish their requests, and exit."""
        self._stopping = True
        self._tell(wire.Stop())

    async def ended(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds; returns whether all front ends have exited."""
        return not (self._keepers and (await asyncio.wait(self._keepers, timeout=timeout))[1])

    async def close(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for server in self._servers:
            server.close()
        if self._folder is not None:
            self._folder.cleanup()

    async def _open(self, listeners: list[int], app: ASGIApp) -> Path:
        loop = asyncio.get_running_loop()
        try:
            remove_left_over(Path(tempfile.gettempdir()))
            self._folder = tempfile.TemporaryDirectory(prefix=PREFIX)
            engine_path, app_path = (str(Path(self._folder.name, name)) for name in ("engine", "app"))
            # A file, because uvloop fails to write to the pipe of a process that exits at once.
            setup = Path(self._folder.name, "setup")
            tokenizer, spec = self._runtime.base.tokenizer, self._runtime.base.spec
            settings = self._settings.model_dump(exclude=NOT_OF_FRONT_ENDS)
            said = wire.Setup(listeners, engine_path, app_path, tokenizer.dumps(), spec.max_length, settings)
            setup.write_bytes(msgspec.msgpack.encode(said))
        except OSError:
            raise InvalidSettings("ONEBERT_FRONT_ENDS: the temporary folder cannot be written") from None
        try:
            self._servers = [
                await loop.create_unix_server(lambda: self._desk().channel, engine_path, backlog=BACKLOG),
                await asyncio.start_unix_server(
                    forwarded_to(app, self._settings.engine_timeout), app_path, backlog=BACKLOG
                ),
            ]
        except OSError:
            raise InvalidSettings("ONEBERT_FRONT_ENDS: the temporary folder takes no Unix sockets") from None
        return setup

    async def _keep(self, setup: Path, listeners: list[int]) -> None:
        """Runs one front end and restarts it until `stop`; before `start` has finished it runs only once."""
        loop = asyncio.get_running_loop()
        ends: deque[float] = deque(maxlen=MAX_ENDS)
        while not self._stopping:
            reason = await _run(setup, listeners)
            if self._stopping:
                return
            logger.error("a front end %s", reason)
            ends.append(loop.time())
            if len(ends) == MAX_ENDS and ends[-1] - ends[0] < ENDS_WITHIN:
                self.failure = OneBertError(f"a front end {reason}, again and again")
            if self.failure or not self._started:
                return
            await asyncio.sleep(RESTART_DELAY)

    async def _all_listen(self, count: int) -> None:
        for _ in range(count):
            await self._listening.acquire()

    def _desk(self) -> FrontDesk:
        runtime, log = self._runtime, self._runtime.telemetry.access_log
        desk = FrontDesk(runtime.admission, runtime.metrics, runtime.keys, self._listens, self._lost, log)
        self._desks.append(desk)
        return desk

    def _listens(self, desk: FrontDesk) -> None:
        self._listening.release()
        if self._draining:
            desk.channel.send(wire.Drain())
        if self._stopping:
            desk.channel.send(wire.Stop())

    def _lost(self, desk: FrontDesk) -> None:
        self._desks.remove(desk)

    def _tell(self, frame: msgspec.Struct) -> None:
        # Called from any thread. A front end that connects meanwhile receives the state from its desk.
        for desk in list(self._desks):
            desk.channel.send(frame)


def remove_left_over(temporary: Path) -> None:
    """Removes the socket directories of servers that were killed, whose sockets refuse connections."""
    for left in temporary.glob(f"{PREFIX}*/engine"):
        # Other users' directories raise OSError. A starting server binds before it listens, so skip new sockets.
        with suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
            if time.time() - left.stat().st_mtime > START_TIMEOUT and asking.connect_ex(str(left)) == ECONNREFUSED:
                shutil.rmtree(left.parent)


async def _run(setup: Path, listeners: list[int]) -> str:
    try:
        with setup.open("rb") as stdin:
            # A new session, so that Ctrl-C at the terminal signals the engine process only.
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                stdin=stdin,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=listeners,
                start_new_session=True,
            )
    except OSError as error:
        return f"could not be started: {error.strerror}"
    try:
        await process.wait()
    finally:
        if process.returncode is None:
            process.kill()
    return f"ended with status {process.returncode}"
