"""A front end on a cluster: serves HTTP on its node and tokenizes; replicas do everything else."""

import asyncio
import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from onebert_ray import measured
from onebert_ray.transport import RayTransport
from onebert_server.access.principal import Action
from onebert_server.http.strict import PROBLEMS, ContextOf, MetricNames
from onebert_server.logs import log_to_stderr
from onebert_server.remote import wire
from onebert_server.run import front_end
from onebert_server.run.serve import bind
from onebert_server.settings import Settings
from onebert_server.telemetry.metrics import Metrics
from onebert_server.telemetry.telemetry import open_telemetry

logger = logging.getLogger("onebert.front_end")

# Timeout in seconds for the replicas' metrics. A dead replica is left out; if one hangs, all replicas are left out.
MEASURED_WITHIN = 2.0

_setup = wire.decoder(wire.Setup)


class FrontEnd:
    """The Ray Serve deployment class of the front ends, one per node; `variables` configure OpenTelemetry."""

    async def __init__(  # type: ignore[misc] # Ray awaits it
        self, settings: Settings, replicas: DeploymentHandle[Any], variables: Mapping[str, str]
    ) -> None:
        os.environ.update(variables)
        log_to_stderr(settings.log_level)
        # Set first: Ray Serve may delete a front end that still waits for its first replica.
        self._serving: asyncio.Task[None] | None = None
        self._settings = settings
        self._replicas = replicas
        setup = _setup(await replicas.options(method_name="setup").remote())
        self._transport = RayTransport(replicas, settings)
        self._metrics = Metrics(settings.task_metrics)
        self._opened = ExitStack()
        telemetry = self._opened.enter_context(open_telemetry(settings))
        self._server = _Server(setup, self._transport, settings, self._metrics, telemetry, [self._system()])
        listeners = bind(settings.host, settings.port)
        self.where = f"http://{settings.host}:{listeners[0].getsockname()[1]}"
        self._serving = asyncio.create_task(self._server.serve(listeners))
        self._serving.add_done_callback(lambda _: self._server.listening.set())
        await self._server.listening.wait()
        if self._serving.done():
            await self._serving  # raises why it could not start

    async def address(self) -> str:
        return self.where

    async def check_health(self) -> None:
        """Called by Ray Serve, which replaces a front end whose check raises."""
        if self._serving is None or (self._serving.done() and not self._server.edge.draining):
            raise RuntimeError("the front end does not listen")

    async def __del__(self) -> None:
        await self.drain()

    async def drain(self) -> None:
        """Serves for the drain delay, then finishes the open requests and stops; later calls return at once."""
        if self._serving is None or self._server.edge.draining:
            return
        self._server.edge.draining = True
        await asyncio.sleep(self._settings.drain_delay)
        self._server.should_exit = True
        await self._serving
        self._transport.close()
        await asyncio.to_thread(self._opened.close)

    def _system(self) -> APIRouter:
        router = APIRouter(responses=PROBLEMS, tags=["system"])

        @router.get("/metrics", response_class=Response)
        async def metrics(context: ContextOf, names: MetricNames = []) -> Response:  # noqa: B006 - FastAPI's
            context.principal.require_all(Action.MEASURE)
            return Response(await self._measure(names), headers={"Content-Type": CONTENT_TYPE_LATEST})

        return router

    async def _measure(self, names: Sequence[str]) -> bytes:
        """The metrics of this node's processes only, so that a scrape of all nodes counts nothing twice."""
        node_part = await measured.part(self._metrics)
        try:
            response = self._replicas.broadcast("measure")
            parts = await response.results_async(timeout_s=MEASURED_WITHIN, return_exceptions=True)
        except (TimeoutError, RayError, RayServeException) as error:
            # Still report this process's metrics, which matter most when replicas fail.
            logger.warning("replicas do not answer with their metrics: %s", type(error).__name__)
            parts = []
        node_parts = [part for part in parts if isinstance(part, measured.Part) and part.node == node_part.node]
        # Slow: parses and formats every sample of all processes.
        return await asyncio.to_thread(measured.together, [node_part, *node_parts], names)


class _Server(front_end.FrontEnd):
    """The server on Ray's event loop; Ray keeps the signal handlers."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
