"""The process of a front end: serves HTTP and tokenizes; the engine process does everything else.

It imports neither torch nor the registry. `keeper.py` in the engine process starts and stops it.
"""

import logging
import os
import signal
import socket
import sys
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

import uvicorn

from onebert_server.access.keys import KeyRing
from onebert_server.answering.answers import WORKERS
from onebert_server.answering.edge import Edge
from onebert_server.garbage import collect_seldom
from onebert_server.logs import log_to_stderr
from onebert_server.remote import wire
from onebert_server.remote.unix import frames
from onebert_server.remote.unix.counts import RemoteCounts
from onebert_server.remote.unix.transport import UnixTransport
from onebert_server.run.front_end import config_of, edge_of
from onebert_server.settings import Settings
from onebert_server.telemetry.telemetry import open_telemetry

logger = logging.getLogger("onebert.front_end")


def main() -> None:
    """Runs one front end until the engine process stops it; reads its `frames.Start` from standard input."""
    # The engine process handles signals and then stops its front ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    start = wire.decoder(frames.Start)(sys.stdin.buffer.read())
    settings = Settings(**start.settings)
    log_to_stderr(settings.log_level)
    keys = KeyRing(settings.api_keys, closed=settings.oidc is not None)
    transport = UnixTransport(start.engine_path, start.relay_path)
    counts = RemoteCounts(transport)
    with open_telemetry(settings, counts) as telemetry, ThreadPoolExecutor(WORKERS, "onebert-worker") as workers:
        edge = edge_of(start.setup, transport, counts, telemetry, workers)
        server = FrontEnd(config_of(edge, transport, keys, settings), transport, edge, keys)
        collect_seldom()
        server.run(sockets=[socket.socket(fileno=listener) for listener in start.listeners])


class FrontEnd(uvicorn.Server):
    """A uvicorn server that the engine process drains and stops by messages; it ignores signals."""

    def __init__(self, config: uvicorn.Config, transport: UnixTransport, edge: Edge, keys: KeyRing) -> None:
        super().__init__(config)
        self._transport = transport
        transport.told, transport.lost = self._told, self._lost
        self._edge = edge
        self._keys = keys

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await self._transport.listen(self._keys)
        await super().startup(sockets)
        self._transport.send(frames.Accepting())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ignores the signal; see `main`."""

    def _told(self, frame: frames.Drain | frames.Stop) -> None:
        if isinstance(frame, frames.Drain):
            self._edge.draining = True
        else:
            self.should_exit = True

    def _lost(self) -> None:
        """Exits at once when the engine process is gone, because no request could finish."""
        if not self.should_exit:
            logger.error("the process with the engine is gone")
            os._exit(1)


if __name__ == "__main__":
    main()
