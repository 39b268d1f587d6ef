"""Runs `onebert train` as a child process, and ends the demo on signals."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from onebert_store.command.process import running
from onebert_store.errors import OneBertError

Json = dict[str, Any]


def train(arguments: list[str], report: Callable[[str], None]) -> Json:
    """Runs `onebert train`, and returns the record of `--json`; `report` gets every line of progress.

    Raises OneBertError if the command fails.
    """
    line = ""
    with running("train", *arguments, "--json", stderr=subprocess.PIPE) as process:
        for raw in process.stderr or ():
            line = raw.strip() or line
            report(line)
        record = process.stdout.read() if process.stdout else ""
        if process.wait():
            raise OneBertError(f"onebert train failed: {line.removeprefix('error: ')}")
    found: Json = json.loads(record)
    return found


@contextmanager
def ending_on_signals() -> Iterator[None]:
    """In the block, SIGTERM and SIGHUP end the demo like Ctrl-C, so that its server and trainings end as well."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
