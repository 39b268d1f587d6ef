"""Front ends beside the engine's process: started, started again when one dies, stopped without losing an answer."""

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

# -P: nothing is imported from the folder that the server happens to be started in.
COMMAND = (sys.executable, "-P", "-m", "onebert_server.front_ends.child")
# Settings that no front end reads: a folder, and addresses that may hold a password.
NOT_OF_FRONT_ENDS = {"data_dir", "registry", "blobs"}
# Seconds within which all front ends have to listen.
START_TIMEOUT = 60.0
# Seconds before a front end is started in place of one that died.
RESTART_DELAY = 1.0
# Where one front end has died so often within so many seconds, another start would not help: the server ends.
MAX_ENDS = 5
ENDS_WITHIN = 60.0
# What the name of a folder with sockets begins with, among other people's temporary files.
PREFIX = "onebert-"
# Connections that may wait to be accepted; each brings one request for the app.
BACKLOG = 2048


class FrontEnds:
    """The front ends of a server, as many as its settings say, and the Unix sockets that they connect to.

    Args:
        runtime: answers them.

    Attributes:
        failure: why the server has to end, when a front end has ended again and again; else None.
    """

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
        """Starts the front ends on bound sockets and waits until all of them listen.

        Args:
            listeners: bound, and shared by all front ends.
            app: answers the requests that front ends forward.

        Raises:
            InvalidSettings: the temporary folder cannot be written, or takes no sockets.
            OneBertError: a front end ended instead of listening, or they did not listen in time.
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
        """Tells the front ends to say `Connection: close` in every answer."""
        if not self._draining:
            self._draining = True
            self._tell(wire.Drain())

    def stop(self) -> None:
        """Tells the front ends to accept nothing more, to answer the requests that they have, and to end."""
        self._stopping = True
        self._tell(wire.Stop())

    async def ended(self, timeout: float) -> bool:
        """Whether all front ends have ended, after `timeout` seconds at most."""
        return not (self._keepers and (await asyncio.wait(self._keepers, timeout=timeout))[1])

    async def close(self) -> None:
        """Ends the front ends that are left, and removes the sockets."""
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        for server in self._servers:
            server.close()
        if self._folder is not None:
            self._folder.cleanup()

    async def _open(self, listeners: list[int], app: ASGIApp) -> Path:
        """Makes the folder with the sockets and the configuration that each front end reads at its start."""
        loop = asyncio.get_running_loop()
        try:
            remove_left_over(Path(tempfile.gettempdir()))
            # Only this user may look into the folder.
            self._folder = tempfile.TemporaryDirectory(prefix=PREFIX)
            engine_path, app_path = (str(Path(self._folder.name, name)) for name in ("engine", "app"))
            # The configuration goes through a file: uvloop cannot write to the pipe of a process that ends at once.
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
        """Runs one front end, again and again until they are stopped; at the start only once."""
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
        """Counts a front end that listens; one that was started late is told what the others were told before."""
        self._listening.release()
        if self._draining:
            desk.channel.send(wire.Drain())
        if self._stopping:
            desk.channel.send(wire.Stop())

    def _lost(self, desk: FrontDesk) -> None:
        self._desks.remove(desk)

    def _tell(self, frame: msgspec.Struct) -> None:
        # From any thread: a front end that connects meanwhile is told by its desk.
        for desk in list(self._desks):
            desk.channel.send(frame)


def remove_left_over(temporary: Path) -> None:
    """Removes the folders of servers that were killed: nobody listens at their sockets."""
    for left in temporary.glob(f"{PREFIX}*/engine"):
        # Another user's folder is not ours to look into; a server that starts binds a moment before it listens.
        with suppress(OSError), socket.socket(socket.AF_UNIX) as asking:
            if time.time() - left.stat().st_mtime > START_TIMEOUT and asking.connect_ex(str(left)) == ECONNREFUSED:
                shutil.rmtree(left.parent)


async def _run(setup: Path, listeners: list[int]) -> str:
    """Runs one front end to its end; what became of it."""
    try:
        with setup.open("rb") as stdin:
            # In a session of its own: a Ctrl-C at the terminal is for the engine's process alone.
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
