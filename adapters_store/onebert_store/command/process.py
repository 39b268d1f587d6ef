"""Runs `onebert` commands as child processes, for the demo, the benchmarks and scripts."""

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import IO, Any

from onebert_store.errors import OneBertError

# Started by module, so that the script `onebert` need not be on the caller's PATH.
ONEBERT = (sys.executable, "-c", "from onebert_store.command.cli import main; main()")

STOP_TIMEOUT_S = 60.0


@contextmanager
def running(
    *arguments: str, stderr: IO[str] | int | None = None, **settings: object
) -> Iterator[subprocess.Popen[str]]:
    """Starts a child and ends it with the block: SIGTERM first, SIGKILL if it does not stop within STOP_TIMEOUT_S.

    While the block runs, SIGTERM and SIGHUP raise SystemExit in the caller, unless it handles them itself. The child
    gets the variables `ONEBERT_…` that `settings` names in lower case, and none of the caller's own.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONEBERT_")}
    environment |= {f"ONEBERT_{name.upper()}": str(value) for name, value in settings.items() if value is not None}
    with (
        _leaving_on_signals(),
        subprocess.Popen(  # noqa: S603 - our own command, no shell
            [*ONEBERT, *arguments],
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            encoding="utf-8",
            process_group=0,  # Ctrl-C reaches only the caller, which then ends its children in order
        ) as process,
    ):
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()


def record_of(command: str, *arguments: str, report: Callable[[str], None]) -> dict[str, Any]:
    """Runs a command with `--json`: its record; `report` gets its lines. Raises OneBertError with its error."""
    line = ""
    with running(command, *arguments, "--json", stderr=subprocess.PIPE) as process:
        for raw in process.stderr or ():
            line = raw.strip() or line
            if not line.startswith("error: "):
                report(line)
        record = process.stdout.read() if process.stdout else ""
        if process.wait():
            raise OneBertError(f"onebert {command} failed: {line.removeprefix('error: ')}")
    decoded: dict[str, Any] = json.loads(record)
    return decoded


@contextmanager
def _leaving_on_signals() -> Iterator[None]:
    """Raises SystemExit on signals that would kill this process and leave its children running."""
    # Only the main thread may set handlers. Signals that are ignored or already handled keep their handler.
    ours = [
        number
        for number in (signal.SIGTERM, signal.SIGHUP)
        if threading.current_thread() is threading.main_thread() and signal.getsignal(number) is signal.SIG_DFL
    ]

    def leave(number: int, frame: FrameType | None) -> None:
        # Ignore further signals, so that they cannot interrupt the ending of children.
        for each in ours:
            signal.signal(each, signal.SIG_IGN)
        raise SystemExit(128 + number)

    for number in ours:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, signal.SIG_DFL)
