"""Starts the front ends, restarts one that dies, and stops them without losing a reply."""

import asyncio
import logging
import os
import re
import secrets
import socket
import struct
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from typing import IO, TYPE_CHECKING

import msgspec

from onebert_server.http.connection.listener import Listener
from onebert_server.remote import wire
from onebert_server.remote.unix import frames
from onebert_server.remote.unix.desk import FrontDesk, Served
from onebert_server.settings import OF_FRONT_ENDS
from onebert_store.errors import OneBertError

if TYPE_CHECKING:
    from onebert_server.runtime import Runtime

logger = logging.getLogger("onebert.front_ends")

# -P keeps the current directory off the import path.
COMMAND = (sys.executable, "-P", "-m", "onebert_server.run.child")
# The variables of the server that its front ends get. Any other one may be a credential.
VARIABLES = re.compile(
    r"PATH|HOME|TMPDIR|TZ|LANG|PYTHON\w*|(LC|LD|MALLOC|OMP|OPENBLAS|OTEL|PROMETHEUS|RAYON|SSL|TOKENIZERS)_\w+|"
    r"(?i:(http|https|all|no)_proxy)|(REQUESTS|CURL)_CA_BUNDLE"
)
# A front end tokenizes a turn's texts on one core: there are other front ends for the others.
DEFAULTS = {"TOKENIZERS_PARALLELISM": "false"}
# Seconds in which a front end must listen.
START_TIMEOUT = 60.0
# Seconds between two beats, by which a front end and the engine's process each notice that the other one stands still.
BEAT = 0.5
# Bounds in seconds on the silence of a front end that is killed, which is half of a request's time: its clients see a
# closed connection, and may ask others in time.
LEAST_SILENCE, MOST_SILENCE = 2.0, 10.0
# Seconds to wait before a dead front end is restarted.
RESTART_DELAY = 1.0
# After MAX_ENDS deaths of one front end within ENDS_WITHIN seconds the server exits, since a restart would not help.
MAX_ENDS = 5
ENDS_WITHIN = 60.0
# Linux' `struct ucred`: process, user and group of a peer.
PEER = struct.Struct("3i")


class FrontEnds:
    """The front ends of a server and their Unix sockets.

    `http` makes the protocol of a connection for a forwarded request. `failure` is set when a front end has died
    repeatedly.
    """

    def __init__(self, runtime: "Runtime", http: Callable[[], asyncio.Protocol]) -> None:
        self.failure: OneBertError | None = None
        self._runtime = runtime
        self._settings = runtime.settings
        self._http = http
        told = runtime.hooks.sample, runtime.telemetry.access_log, runtime.telemetry.tracing
        self._served = Served(runtime.admission, runtime.metrics, runtime.keys, *told)
        self._opened = ExitStack()
        self._keepers: list[asyncio.Task[None]] = []
        self._processes: dict[int, asyncio.subprocess.Process] = {}
        # By process, until it listens.
        self._starting: dict[int, asyncio.TimerHandle] = {}
        self._desks: set[FrontDesk] = set()
        self._listening = asyncio.Semaphore(0)
        self._started = self._draining = self._stopping = False

    async def start(self, listeners: Sequence[socket.socket]) -> None:
        """Starts the front ends on shared, bound sockets and waits until all of them listen.

        Raises:
            OneBertError: a front end ended before it listened, at the latest after `START_TIMEOUT`.
        """
        keys = self._runtime.keys
        keys.tell(lambda: self._tell(wire.keys(keys)))
        loop, count = asyncio.get_running_loop(), self._settings.front_ends or 0
        numbers = [listener.fileno() for listener in listeners]
        start = self._open(numbers)
        self._keepers = [loop.create_task(self._keep(start, numbers)) for _ in range(count)]
        self._opened.callback(loop.create_task(self._watch()).cancel)
        listening = loop.create_task(self._all_listen(count))
        try:
            await asyncio.wait([listening, *self._keepers], return_when=asyncio.FIRST_COMPLETED)
            if not listening.done():
                raise OneBertError("a front end could not be started; the log says why")
        finally:
            listening.cancel()
        self._started = True

    def drain(self) -> None:
        """Makes the front ends send `Connection: close` with every reply."""
        if not self._draining:
            self._draining = True
            self._tell(frames.Drain())

    def stop(self) -> None:
        """Makes the front ends stop accepting, finish their requests, and exit."""
        self._stopping = True
        self._tell(frames.Stop())

    async def ended(self, timeout: float) -> bool:
        """Waits up to `timeout` seconds; returns whether all front ends have exited."""
        return not (self._keepers and (await asyncio.wait(self._keepers, timeout=timeout))[1])

    async def close(self) -> None:
        for keeper in self._keepers:
            keeper.cancel()
        await asyncio.gather(*self._keepers, return_exceptions=True)
        self._opened.close()

    def _open(self, listeners: list[int]) -> IO[bytes]:
        # Names without a path: nothing that clears a temporary folder takes them away.
        engine, control = (f"\0onebert-{name}-{secrets.token_hex(16)}" for name in ("engine", "control"))
        self._listen_at(engine, lambda: self._desk().channel)
        self._listen_at(control, self._http)
        setup = wire.setup_of(self._runtime.admission.splitters)
        settings = self._settings.model_dump(include=OF_FRONT_ENDS)
        # A file: uvloop fails to write to the pipe of a process that exits at once.
        start = self._opened.enter_context(open(os.memfd_create("onebert-start"), "wb"))  # noqa: SIM115
        start.write(msgspec.msgpack.encode(frames.Start(listeners, engine, control, setup, settings)))
        start.flush()
        return start

    def _listen_at(self, name: str, make: Callable[[], asyncio.Protocol]) -> None:
        bound = self._opened.enter_context(socket.socket(socket.AF_UNIX))
        bound.bind(name)
        self._opened.callback(Listener(bound, make, self._is_front_end).close)

    def _is_front_end(self, connection: socket.socket) -> bool:
        """Whether a process that this one has started connects: others find such names, too."""
        pid, _, _ = PEER.unpack(connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, PEER.size))
        return pid in self._processes

    async def _keep(self, start: IO[bytes], listeners: list[int]) -> None:
        """Runs one front end and restarts it until `stop`; before `start` has finished it runs only once."""
        loop = asyncio.get_running_loop()
        ends: deque[float] = deque(maxlen=MAX_ENDS)
        while not self._stopping:
            reason = await self._run(start, listeners)
            if self._stopping:
                return
            logger.error("a front end %s", reason)
            ends.append(loop.time())
            if len(ends) == MAX_ENDS and ends[-1] - ends[0] < ENDS_WITHIN:
                self.failure = OneBertError(f"a front end {reason}, again and again")
            if self.failure or not self._started:
                return
            await asyncio.sleep(RESTART_DELAY)

    async def _run(self, start: IO[bytes], listeners: list[int]) -> str:
        try:
            # A new session, so that Ctrl-C at the terminal signals the engine process only.
            process = await asyncio.create_subprocess_exec(
                *COMMAND,
                stdin=start,
                stdout=asyncio.subprocess.DEVNULL,
                pass_fds=listeners,
                env=DEFAULTS | {name: value for name, value in os.environ.items() if VARIABLES.fullmatch(name)},
                start_new_session=True,
            )
        except OSError as error:
            return f"could not be started: {error.strerror}"
        pid, loop = process.pid, asyncio.get_running_loop()
        self._processes[pid] = process
        self._starting[pid] = loop.call_later(START_TIMEOUT, self._kill, pid, "does not listen", START_TIMEOUT)
        try:
            await process.wait()
        finally:
            del self._processes[pid]
            self._listens(pid)
            if process.returncode is None:
                process.kill()
        return f"ended with status {process.returncode}"

    async def _watch(self) -> None:
        """Kills front ends that stand still. Silence is counted in beats, since this process may have stood, too."""
        silence = min(max(self._settings.request_timeout / 2, LEAST_SILENCE), MOST_SILENCE)
        while True:
            await asyncio.sleep(BEAT)
            for desk in list(self._desks):
                if desk.unanswered * BEAT >= silence and desk.process in self._processes:
                    self._kill(desk.process, "says nothing", silence)
                else:
                    desk.beat()

    def _kill(self, pid: int, why: str, seconds: float) -> None:
        logger.error("a front end %s for %.0f seconds, and is killed", why, seconds)
        # Its end may not be known here yet.
        with suppress(ProcessLookupError):
            self._processes[pid].kill()

    def _listens(self, pid: int) -> None:
        if starting := self._starting.pop(pid, None):
            starting.cancel()

    async def _all_listen(self, count: int) -> None:
        for _ in range(count):
            await self._listening.acquire()

    def _desk(self) -> FrontDesk:
        desk = FrontDesk(self._served, self._accepts, self._desks.discard)
        self._desks.add(desk)
        return desk

    def _accepts(self, desk: FrontDesk) -> None:
        self._listening.release()
        self._listens(desk.process or 0)
        if self._draining:
            desk.channel.send(frames.Drain())
        if self._stopping:
            desk.channel.send(frames.Stop())

    def _tell(self, frame: msgspec.Struct) -> None:
        # Called from any thread. A front end that connects meanwhile receives the state from its desk.
        for desk in list(self._desks):
            desk.channel.send(frame)
