"""Progress of the benchmark scripts."""

import sys
import time


def say(started: float, what: str) -> None:
    """Prints a line on standard error, with the seconds since `started` (of `time.monotonic`)."""
    print(f"{time.monotonic() - started:6.0f} s  {what}", file=sys.stderr, flush=True)
