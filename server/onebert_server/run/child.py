"""The process of a front end: serves HTTP and tokenizes; the engine process does everything else.

It imports neither torch nor the registry. `keeper.py` in the engine process starts and stops it.
"""

import logging
import os
import signal
import socket
from types import FrameType

from onebert_server.logs import log_to_stderr
from onebert_server.remote import wire
from onebert_server.remote.unix import frames
from onebert_server.remote.unix.transport import RemoteCounts, UnixTransport
from onebert_server.run.front_end import FrontEnd
from onebert_server.settings import Settings
from onebert_server.telemetry.telemetry import open_telemetry

logger = logging.getLogger("onebert.front_end")


def main() -> None:
    """Runs one front end until the engine process stops it; reads its `frames.Start` from standard input."""
    # The engine process handles signals and then stops its front ends.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    # Not `read`: the front ends share the file's position.
    start = wire.decoder(frames.Start)(os.pread(0, os.fstat(0).st_size, 0))
    settings = Settings(**start.settings)
    log_to_stderr(settings.log_level)
    transport = UnixTransport(start.engine, start.control)
    counts = RemoteCounts(transport)
    with open_telemetry(settings, counts) as telemetry:
        server = Child(start.setup, transport, settings, counts, telemetry)
        transport.told, transport.lost = server.on_frame, server.lost
        server.run(sockets=[socket.socket(fileno=listener) for listener in start.listeners])


class Child(FrontEnd):
    """A front end that the engine process drains and stops by messages; it ignores signals."""

    transport: UnixTransport

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.transport.send(frames.Accepting())

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Ignores the signal; see `main`."""

    def on_frame(self, frame: frames.Drain | frames.Stop) -> None:
        if isinstance(frame, frames.Drain):
            self.edge.draining = True
        else:
            self.should_exit = True

    def lost(self) -> None:
        """Exits at once when the engine process is gone, because no request could finish."""
        if not self.should_exit:
            logger.error("the process with the engine is gone")
            os._exit(1)


if __name__ == "__main__":
    main()
