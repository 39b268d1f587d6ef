"""`onebert` commands as child processes: for the demo, the benchmarks and scripts."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO

# Started by module and not by path, so that the script `onebert` need not be on the caller's PATH.
ONEBERT = (sys.executable, "-c", "from onebert_store.command.cli import main; main()")

STOP_TIMEOUT_S = 60.0


@contextmanager
def running(
    *arguments: str, stderr: IO[str] | int | None = None, **settings: object
) -> Iterator[subprocess.Popen[str]]:
    """A child that does not outlive the block: it is asked to stop, and killed where it does not.

    Args:
        arguments: the command line after `onebert`.
        stderr: as for `subprocess.Popen`; None shares the caller's standard error.
        settings: `ONEBERT_…` variables by their lower-case names; the caller's own ones are not passed on.
    """
    environment = {name: value for name, value in os.environ.items() if not name.startswith("ONEBERT_")}
    environment |= {f"ONEBERT_{name.upper()}": str(value) for name, value in settings.items() if value is not None}
    process = subprocess.Popen(  # noqa: S603 - our own command, no shell
        [*ONEBERT, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=stderr,
        text=True,
        encoding="utf-8",
        process_group=0,  # Ctrl-C reaches the caller alone, which then ends its children in order
    )
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:
                process.terminate()
                try:
                    process.wait(STOP_TIMEOUT_S)
                except subprocess.TimeoutExpired:
                    process.kill()
