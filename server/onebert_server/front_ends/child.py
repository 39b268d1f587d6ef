"""The process of a front end: serves HTTP and tokenizes; the engine process does everything else.

It imports neither torch nor the registry. `keeper.py` in the engine process starts and stops it.
"""

import asyncio
import logging
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from types import FrameType
from typing import Any

import msgspec
import uvicorn

from onebert_encoder.text.tokenizer import Tokenizer
from onebert_server.access.keys import KeyRing
from onebert_server.answering.answers import WORKERS, Answerer
from onebert_server.edge import Edge
from onebert_server.facades.routes import answering, form_of
from onebert_server.front_ends import wire
from onebert_server.front_ends.channel import Channel
from onebert_server.front_ends.forwarding import Forwarding
from onebert_server.front_ends.remote import RemoteBackend, RemoteCounts
from onebert_server.garbage import collect_seldom
from onebert_server.http.auth import ApiKeys
from onebert_server.http.formats import formats_of
from onebert_server.http.web import oidc_tokens, uvicorn_config, web_app
from onebert_server.logs import log_to_stderr
from onebert_server.settings import Settings
from onebert_server.telemetry.telemetry import open_telemetry

logger = logging.getLogger("onebert.front_end")


def main() -> None:
    """Runs one front end until the engine process stops it; reads its `wire.Setup` from standard input."""
    # The engine process handles signals and then stops its front ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    setup = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=wire.Setup)
    settings = Settings(**setup.settings)
    log_to_stderr(settings.log_level)
    backend, counts = RemoteBackend(), RemoteCounts()
    keys = KeyRing(settings.api_keys, closed=settings.oidc is not None)
    tokens = oidc_tokens(settings.oidc)
    with open_telemetry(settings, counts) as telemetry, ThreadPoolExecutor(WORKERS, "onebert-worker") as workers:
        answerer = Answerer(Tokenizer.loads(setup.tokenizer), setup.max_length, backend, workers)
        edge = Edge(answerer, counts, telemetry=telemetry)
        router = answering()
        forwarding = Forwarding(
            web_app(edge, [router], keys=keys, settings=settings, tokens=tokens, form_of=form_of),
            formats_of([router]),
            setup.app_path,
            ApiKeys(keys, tokens),
            settings.engine_timeout,
        )
        config = uvicorn_config(forwarding, settings.receive_timeout, settings.shutdown_timeout)
        server = FrontEnd(config, setup.engine_path, edge, backend, counts, keys)
        collect_seldom()
        server.run(sockets=[socket.socket(fileno=listener) for listener in setup.listeners])


class FrontEnd(uvicorn.Server):
    """A uvicorn server that the engine process drains and stops by messages; it ignores signals."""

    def __init__(
        self,
        config: uvicorn.Config,
        engine_path: str,
        edge: Edge,
        backend: RemoteBackend,
        counts: RemoteCounts,
        keys: KeyRing,
    ) -> None:
        super().__init__(config)
        self._engine_path = engine_path
        self._edge = edge
        self._backend = backend
        self._counts = counts
        self._keys = keys
        self._keys_came = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        _, channel = await asyncio.get_running_loop().create_unix_connection(
            lambda: Channel(wire.FromEngine, self._received, self._lost), self._engine_path
        )
        self._backend.channel = self._counts.channel = channel
        channel.send(wire.Connected())
        await self._keys_came.wait()
        await super().startup(sockets)
        channel.send(wire.Accepting())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ignores the signal; see `main`."""

    def _received(self, frame: Any) -> None:
        match frame:
            case wire.Drain():
                self._edge.draining = True
            case wire.Stop():
                self.should_exit = True
            case wire.Keys():
                wire.exchange(self._keys, frame)
                self._keys_came.set()
            case reply:
                self._backend.received(reply)

    def _lost(self) -> None:
        """Exits at once when the engine process is gone, because no request could finish."""
        if not self.should_exit:
            logger.error("the process with the engine is gone")
            os._exit(1)


if __name__ == "__main__":
    main()
