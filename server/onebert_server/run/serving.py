"""Runs a server as a child process on a free loopback port, for the demo, the benchmarks and scripts."""

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from onebert_store.command.process import STOP_TIMEOUT_S, running
from onebert_store.errors import ServerUnreachable


class ChildServer:
    """A running `onebert serve`."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self.url = url

    @property
    def pid(self) -> int:
        return self._process.pid

    def stop(self) -> bool:
        """Terminates the process and waits; returns whether it ended in time with exit code 0."""
        self._process.terminate()
        try:
            return self._process.wait(STOP_TIMEOUT_S) == 0
        except subprocess.TimeoutExpired:
            return False

    def wait(self) -> None:
        self._process.wait()


@contextmanager
def serving(data_dir: Path, **settings: object) -> Iterator[ChildServer]:
    """Runs `onebert serve` while the block runs; `settings` are `ONEBERT_…` settings by their lower-case names.

    Raises:
        ServerUnreachable: it did not start; the detail is the last line of its log.
    """
    with (
        tempfile.TemporaryFile("w+", encoding="utf-8") as log,
        running("serve", stderr=log, **{"data_dir": data_dir, "port": 0, **settings}) as process,
    ):
        greeting = process.stdout.readline() if process.stdout else ""
        match = re.match(r"Listening on (http://\S+):", greeting)
        if match is None:
            log.seek(0)
            last = (log.read().strip().splitlines() or ["it said nothing"])[-1]
            raise ServerUnreachable(f"onebert serve did not start: {last.removeprefix('error: ')}")
        yield ChildServer(process, match[1])
