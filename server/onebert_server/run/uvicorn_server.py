"""A uvicorn server that listens while the runtime loads, and drains before it stops."""

import asyncio
import logging
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any

import typer

from onebert_server.engine.memory import collect_seldom, importing
from onebert_server.http.connection.listener import ListeningServer
from onebert_server.http.starting import StartingApp
from onebert_server.http.web import WebApp, uvicorn_config
from onebert_server.run.progress import shown
from onebert_server.settings import Settings
from onebert_server.versions.progress import Progress

if TYPE_CHECKING:
    from onebert_server.runtime import Runtime

logger = logging.getLogger("onebert.serve")

# Seconds to wait for an abandoned start; a download, for example, cannot be interrupted.
GIVE_UP_TIMEOUT = 2.0


class Server(ListeningServer):
    """Opens a runtime while it listens, reports when it is ready, and exits with status 0 after a stop signal.

    `failure` is the error that stopped it; `stuck`: an abandoned start is still running.
    """

    def __init__(self, settings: Settings) -> None:
        self._progress = Progress()
        self._front = StartingApp(self._progress)
        super().__init__(uvicorn_config(self._front, settings.shutdown_timeout))
        self.failure: BaseException | None = None
        self.draining = self.stuck = False
        self._settings = settings
        self._opened = ExitStack()
        self._runtime: Runtime | None = None
        self._opening: asyncio.Task[None] | None = None
        self._where: tuple[Any, ...] = ()
        self._exit_at = float("inf")

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        [self._where, *_] = [listener.getsockname() for listener in sockets or []]
        await super().startup(sockets)
        if self.started:
            self._opening = asyncio.create_task(self._open())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Fails readiness at once, exits after the drain delay. SIGINT skips the delay; a second one forces the exit.

        Does not call uvicorn's handler, which would raise the signal again at exit and change the exit status.
        """
        self.force_exit = self.draining and sig == signal.SIGINT
        self.draining = self._front.draining = True
        self._progress.give_up()
        if self._runtime is not None:
            self._runtime.draining = True
        delay = self._settings.drain_delay if sig == signal.SIGTERM and self._front.ready else 0.0
        self._exit_at = min(self._exit_at, time.monotonic() + delay)

    async def on_tick(self, counter: int) -> bool:
        self.should_exit = self.should_exit or time.monotonic() >= self._exit_at
        return await super().on_tick(counter)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await super().shutdown(sockets)
        if self._opening is not None:
            await asyncio.wait([self._opening], timeout=GIVE_UP_TIMEOUT)
            self.stuck = not self._opening.done()
        self._opened.close()

    async def ready(self, runtime: "Runtime", app: WebApp) -> None:
        self._front.ready = app

    async def _open(self) -> None:
        opened: asyncio.Future[tuple[Runtime, WebApp]] = asyncio.get_running_loop().create_future()
        # A daemon thread, because loading cannot be interrupted and must not delay the exit.
        threading.Thread(target=self._open_beside, args=[opened], name="onebert-opening", daemon=True).start()
        try:
            self._runtime, app = await opened
            self._runtime.draining = self.draining
            collect_seldom()
            await self.ready(self._runtime, app)
            for line in facts(self._runtime):
                logger.info(line)
            typer.echo(greeting(self._runtime, *self._where[:2]))
        except BaseException as error:
            # After a stop signal an abandoned start is no failure.
            self.failure = None if self.draining else error
            self.should_exit = True

    def _open_beside(self, opened: "asyncio.Future[tuple[Runtime, WebApp]]") -> None:
        try:
            # Imports torch, which takes seconds.
            with importing():
                from onebert_server.hosts import begin_loading  # noqa: PLC0415

                # Beside the other imports: loading hardly needs the interpreter.
                loading = begin_loading(self._settings)
                from onebert_server.run.app import create_app  # noqa: PLC0415
                from onebert_server.run.opening import open_runtime  # noqa: PLC0415

            with shown(self._progress):
                runtime = self._opened.enter_context(open_runtime(self._settings, self._progress, loading))
            result = runtime, create_app(runtime)
        except BaseException as error:
            _call_in_loop(opened, partial(opened.set_exception, error))
        else:
            _call_in_loop(opened, partial(opened.set_result, result))


def _call_in_loop(opened: "asyncio.Future[tuple[Runtime, WebApp]]", call: Callable[[], None]) -> None:
    # RuntimeError: the event loop has closed, so nothing awaits the runtime.
    with suppress(RuntimeError):
        opened.get_loop().call_soon_threadsafe(call)


def facts(runtime: "Runtime") -> Iterator[str]:
    """Log lines about the loaded base, tasks and configuration."""
    from onebert_encoder.maths.choose import answering_kernels  # noqa: PLC0415

    settings, counts = runtime.settings, runtime.directory.counts()
    for base in (host.base for host in runtime.hosts):
        yield f"base: {base.spec.name}, {base.spec.num_parameters:,} parameters, digest {base.spec.digest}"
        rounding = "the same in every batch" if base.batch_invariant else "by the batch"
        kernels = answering_kernels(base).description
        yield f"computes: {base.dtype_name} on {base.device}, {kernels} kernels, rounds {rounding}"
    unavailable = f", {counts['unavailable']} unavailable" if counts["unavailable"] else ""
    versions = f"{counts['versions']} versions, {counts['resident']} of them resident{unavailable}"
    files = f", files in {settings.blobs}" if settings.blobs else ""
    yield f"holds: {counts['tasks']} tasks, {versions}, in {runtime.registry.where}{files}"
    yield f"processes: {settings.front_ends} front ends and the engine's" if settings.front_ends else "processes: one"
    open_to_all = "no keys: whoever reaches it may do everything" if runtime.keys.is_open else "keys are asked for"
    yield f"access: {open_to_all}"
    traces = "spans are exported by OTLP" if runtime.telemetry.tracing else "no traces"
    yield f"told: {traces}, access log {settings.access_log}, metrics of {settings.task_metrics} tasks"


def greeting(runtime: "Runtime", host: str, port: int) -> str:
    """The line that a server prints when it is ready."""
    from onebert_encoder.maths.choose import answering_kernels  # noqa: PLC0415

    where = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    bases, counts = [host.base for host in runtime.hosts], runtime.directory.counts()
    base, names = bases[0], " and ".join(base.spec.name for base in bases)
    tasks = f"{counts['tasks']} task{'' if counts['tasks'] == 1 else 's'}"
    computes = f"{base.dtype_name} on {base.device}, {answering_kernels(base).description} kernels"
    return f"Listening on {where}: {names}, {computes}, {tasks}"
