"""A front end: a process that takes HTTP, tokenizes, and reads answers; what remains is for the engine's process.

It knows neither torch nor the base nor the registry. `front_ends` starts it and stops it.
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

from onebert_encoder.tokens import Tokenizer
from onebert_server import routes_classify, wire
from onebert_server.answers import WORKERS, Answerer
from onebert_server.forwarding import Forwarding, refuse
from onebert_server.metrics import Metrics
from onebert_server.middleware import RequestMiddleware
from onebert_server.remote import RemoteVersions
from onebert_server.routing import FrontParts
from onebert_server.web import log_to_stderr, uvicorn_config, web_app

logger = logging.getLogger("onebert.front_end")


def main() -> None:
    """Serves until told to stop; reads from standard input what with."""
    # Whoever ends the server tells the engine's process, which tells its front ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    setup = msgspec.msgpack.decode(sys.stdin.buffer.read(), type=wire.Setup)
    log_to_stderr(setup.log_level)
    versions = RemoteVersions()
    with ThreadPoolExecutor(WORKERS, "onebert-worker") as workers:
        parts = FrontParts(Answerer(Tokenizer.loads(setup.tokenizer), versions, workers), Metrics())
        app = web_app(
            parts,
            [routes_classify.router],
            api_keys=setup.api_keys,
            max_body_bytes=setup.max_body_bytes,
            receive_timeout=setup.receive_timeout,
        )
        refusing = RequestMiddleware(refuse, parts)
        forwarding = Forwarding(app, routes_classify.router.routes, setup.app_path, refusing)
        config = uvicorn_config(forwarding, setup.shutdown_timeout)
        server = FrontEnd(config, setup.engine_path, parts, versions)
        server.run(sockets=[socket.socket(fileno=setup.listener)])


class FrontEnd(uvicorn.Server):
    """uvicorn that does what the engine's process says, and nothing on signals."""

    def __init__(self, config: uvicorn.Config, engine_path: str, parts: FrontParts, versions: RemoteVersions) -> None:
        super().__init__(config)
        self._engine_path = engine_path
        self._parts = parts
        self._versions = versions

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Listens once it is connected, and says so."""
        _, channel = await asyncio.get_running_loop().create_unix_connection(
            lambda: wire.Channel(wire.FromEngine, self._received, self._lost), self._engine_path
        )
        self._versions.channel = channel
        await super().startup(sockets)
        channel.send(wire.Listening())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """See `main`."""

    def _received(self, frame: Any) -> None:
        match frame:
            case wire.Count():
                self._versions.channel.send(wire.Counted(self._parts.metrics.counted()))
            case wire.Drain():
                self._parts.draining = True
            case wire.Stop():
                self.should_exit = True
            case reply:
                self._versions.received(reply)

    def _lost(self) -> None:
        """Without the engine's process there is nothing to finish."""
        if not self.should_exit:
            logger.error("the process with the engine is gone")
            os._exit(1)


if __name__ == "__main__":
    main()
