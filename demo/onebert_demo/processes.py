"""The commands that the demo runs as processes of their own: `onebert train` and `onebert serve`."""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from onebert_store.errors import OneBertError

Json = dict[str, Any]

ONEBERT = (sys.executable, "-c", "from onebert_store.cli import main; main()")
PATIENCE = 45.0  # seconds for a process to end once it was asked to


def train(arguments: list[str], report: Callable[[str], None]) -> Json:
    """Runs `onebert train` to its end.

    Args:
        arguments: what stands behind `onebert train`.
        report: called with every line of progress.

    Returns:
        The record that it prints with --json.

    Raises:
        OneBertError: it failed.
    """
    line = ""
    with _running("train", *arguments, "--json", stderr=subprocess.PIPE) as process:
        for raw in process.stderr or ():
            line = raw.strip() or line
            report(line)
        record = process.stdout.read() if process.stdout else ""
        if process.wait():
            raise OneBertError(f"onebert train failed: {line.removeprefix('error: ')}")
    found: Json = json.loads(record)
    return found


class Server:
    """A running `onebert serve`."""

    def __init__(self, process: subprocess.Popen[str], url: str) -> None:
        self._process = process
        self.url = url

    def stop(self) -> bool:
        """Asks it to end, and waits; whether it ended with exit code 0."""
        self._process.terminate()
        try:
            return self._process.wait(PATIENCE) == 0
        except subprocess.TimeoutExpired:
            return False

    def wait(self) -> None:
        """Waits until it ends by itself."""
        self._process.wait()


@contextmanager
def serving(data_dir: Path, log: Path) -> Iterator[Server]:
    """Runs `onebert serve` on a free port of the loopback.

    Args:
        data_dir: folder of the registry.
        log: file that takes what the server says.

    Raises:
        OneBertError: it does not start.
    """
    with (
        log.open("w", encoding="utf-8") as stderr,
        _running("serve", "--port", "0", "--data-dir", str(data_dir), stderr=stderr) as process,
    ):
        greeting = process.stdout.readline() if process.stdout else ""
        found = re.match(r"Listening on (http://\S+):", greeting)
        if not found:
            last = (log.read_text(encoding="utf-8").splitlines() or ["it said nothing"])[-1]
            raise OneBertError(f"onebert serve did not start: {last.removeprefix('error: ')}")
        yield Server(process, found[1])


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """SIGTERM and SIGHUP end the demo as Ctrl-C does, so that no process of it is left behind."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextmanager
def _running(*arguments: str, stderr: Any) -> Iterator[subprocess.Popen[str]]:
    """A `onebert` process that does not outlive the block; ONEBERT_… settings of the caller are not for it."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("ONEBERT_")}
    process = subprocess.Popen(  # noqa: S603 - our own command, no shell
        [*ONEBERT, *arguments],
        env=env,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        encoding="utf-8",
        process_group=0,  # Ctrl-C reaches the demo alone, which then ends its processes in order
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(PATIENCE)
                except subprocess.TimeoutExpired:
                    process.kill()
