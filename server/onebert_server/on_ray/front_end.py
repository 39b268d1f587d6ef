"""A front end on a cluster: serves HTTP on its node and tokenizes; replicas do everything else."""

import asyncio
import hashlib
import logging
import os
import socket
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from typing import Any

import msgspec
import uvicorn
from fastapi import APIRouter, Response
from prometheus_client import CONTENT_TYPE_LATEST
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from starlette.types import ASGIApp

from onebert_encoder.text.tokenizer import Tokenizer
from onebert_server.access.keys import KeyRing
from onebert_server.access.principal import Action
from onebert_server.answering.answers import WORKERS, Answerer
from onebert_server.edge import Edge
from onebert_server.facades.routes import answering, form_of
from onebert_server.front_ends import wire
from onebert_server.garbage import collect_seldom
from onebert_server.http.strict import PROBLEMS, ContextOf, MetricNames
from onebert_server.http.web import oidc_tokens, uvicorn_config, web_app
from onebert_server.logs import log_to_stderr
from onebert_server.metrics import Metrics
from onebert_server.on_ray import measured
from onebert_server.on_ray.backend import RayBackend
from onebert_server.on_ray.relay import Relay
from onebert_server.run.serve import bind
from onebert_server.settings import Settings
from onebert_server.telemetry.telemetry import open_telemetry

logger = logging.getLogger("onebert.front_end")

# Seconds between two polls for keys. Together with the replica's own poll of the registry, a revoked key is refused
# everywhere within five seconds.
KEYS_EVERY = 1.0
# Timeout in seconds for the replicas' metrics. A dead replica is left out; if one hangs, all replicas are left out.
MEASURED_WITHIN = 2.0

_keys = msgspec.msgpack.Decoder(wire.Keys).decode


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
        self._ring = KeyRing(settings.api_keys, closed=settings.oidc is not None)
        self._digest = b""
        tokenizer, max_length = await replicas.options(method_name="setup").remote()
        await self._look()
        self._metrics = Metrics(settings.task_metrics)
        self._told = ExitStack()
        telemetry = self._told.enter_context(open_telemetry(settings))
        workers = ThreadPoolExecutor(WORKERS, "onebert-worker")
        answerer = Answerer(Tokenizer.loads(tokenizer), max_length, RayBackend(replicas), workers)
        self._edge = Edge(answerer, self._metrics, telemetry=telemetry)
        self._server = _Server(self._config())
        listeners = bind(settings.host, settings.port)
        self.where = f"http://{settings.host}:{listeners[0].getsockname()[1]}"
        self._serving = asyncio.create_task(self._server.serve(listeners))
        self._looking = asyncio.create_task(self._keep_looking())
        await self._server.listening.wait()
        collect_seldom()

    async def address(self) -> str:
        return self.where

    async def check_health(self) -> None:
        """Called by Ray Serve, which replaces a front end whose check raises."""
        if self._serving is None or (self._serving.done() and not self._edge.draining):
            raise RuntimeError("the front end does not listen")

    async def __del__(self) -> None:
        await self.drain()

    async def drain(self) -> None:
        """Serves for the drain delay, then finishes the open requests and stops; later calls return at once."""
        if self._serving is None or self._edge.draining:
            return
        self._edge.draining = True
        await asyncio.sleep(self._settings.drain_delay)
        self._server.should_exit = True
        await self._serving
        self._looking.cancel()
        await asyncio.to_thread(self._told.close)

    def _config(self) -> uvicorn.Config:
        settings = self._settings
        routers = [answering(), self._system()]
        tokens = oidc_tokens(settings.oidc)
        own = [route for router in routers for route in router.routes]

        def relay(app: ASGIApp) -> ASGIApp:
            return Relay(app, own, self._edge, self._replicas, settings.max_upload_bytes, settings.engine_timeout)

        app = web_app(
            self._edge, routers, keys=self._ring, settings=settings, tokens=tokens, form_of=form_of, beyond=relay
        )
        return uvicorn_config(app, settings.receive_timeout, settings.shutdown_timeout)

    def _system(self) -> APIRouter:
        router = APIRouter(responses=PROBLEMS, tags=["system"])

        @router.get("/metrics", response_class=Response)
        async def metrics(context: ContextOf, names: MetricNames = []) -> Response:  # noqa: B006 - FastAPI's
            context.principal.require_all(Action.MEASURE)
            return Response(await self._measure(names), headers={"Content-Type": CONTENT_TYPE_LATEST})

        return router

    async def _measure(self, names: Sequence[str]) -> bytes:
        """The metrics of this node's processes only, so that a scrape of all nodes counts nothing twice."""
        here = await measured.part(self._metrics)
        try:
            asked = self._replicas.broadcast("measure")
            parts = await asked.results_async(timeout_s=MEASURED_WITHIN, return_exceptions=True)
        except (TimeoutError, RayError, RayServeException) as error:
            # Still report this process's metrics, which matter most when replicas fail.
            logger.warning("replicas do not say what they count: %s", type(error).__name__)
            parts = []
        own = [part for part in parts if isinstance(part, measured.Part) and part.node == here.node]
        # Slow: parses and formats every sample of all processes.
        return await asyncio.to_thread(measured.together, [here, *own], names)

    async def _look(self) -> None:
        changed: bytes = await self._replicas.options(method_name="keys").remote(self._digest)
        if changed:
            wire.exchange(self._ring, _keys(changed))
            self._digest = hashlib.sha256(changed).digest()

    async def _keep_looking(self) -> None:
        while True:
            await asyncio.sleep(KEYS_EVERY)
            try:
                async with asyncio.timeout(self._settings.engine_timeout):
                    await self._look()
            # Catch everything: if this loop ended, a revoked key would stay valid forever.
            except Exception as error:
                logger.error("no replica tells which keys are taken: %s", type(error).__name__)


class _Server(uvicorn.Server):
    """uvicorn on Ray's event loop; Ray keeps the signal handlers."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.listening = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.listening.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield
