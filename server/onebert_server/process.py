"""A server as a child process on a free loopback port, for the demo, the benchmarks and scripts."""

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from types import TracebackType
from typing import IO, Self

from onebert_server.client import Client
from onebert_store.errors import ServerUnreachable

ONEBERT = Path(sys.executable).with_name("onebert")

_STOP_TIMEOUT_S = 60.0


class ServerProcess:
    """`onebert serve` while the `with` block runs; stops its own child and nothing else.

    Args:
        data_dir: where the server keeps its tasks.
        settings: `ONEBERT_…` settings by their lower-case names.

    Raises:
        ServerUnreachable: the server did not start; the detail is its own last line.
    """

    def __init__(self, data_dir: Path, **settings: object) -> None:
        own = {"data_dir": data_dir, "port": 0, **settings}
        environment = {name: value for name, value in os.environ.items() if not name.startswith("ONEBERT_")}
        environment |= {f"ONEBERT_{name.upper()}": str(value) for name, value in own.items() if value is not None}
        self._log: IO[str] = tempfile.TemporaryFile("w+")  # noqa: SIM115 - lives as long as the process
        self.process = subprocess.Popen(  # noqa: S603 - our own command, no shell
            [ONEBERT, "serve"], env=environment, stdout=subprocess.PIPE, stderr=self._log, text=True
        )
        greeting = self.process.stdout.readline() if self.process.stdout else ""
        found = re.match(r"Listening on (http://\S+):", greeting)
        if found is None:
            self.process.wait(_STOP_TIMEOUT_S)
            raise ServerUnreachable(f"the server did not start: {self.last_line()}")
        self.url = found[1]

    def client(self) -> Client:
        """A client of this server; the caller closes it."""
        return Client(self.url)

    def last_line(self) -> str:
        """The last line the server logged."""
        self._log.seek(0)
        return (self._log.read().strip().splitlines() or ["it said nothing"])[-1]

    def stop(self) -> int:
        """Asks the server to stop, waits for it, and returns its exit code; kills it when it does not."""
        self.process.terminate()
        try:
            code = self.process.wait(_STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            code = self.process.wait()
        if self.process.stdout:
            self.process.stdout.close()
        self._log.close()
        return code

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()
