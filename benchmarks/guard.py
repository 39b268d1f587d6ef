"""Checks the central promise: 64 tasks mixed in one batch are answered at 0.95 of the rate of one task, or more.

Both rates are measured in one run, in turns, so that a slow machine slows both. A busy machine may still disturb one of
them, so the check fails only if every attempt misses the promise.
"""

import sys

import torch

from onebert_bench.compute import measure_mixed
from onebert_server.engine.memory import keep_freed_memory

PROMISE = 0.95
ATTEMPTS = 5
REPETITIONS = 15


def main() -> None:
    """Prints the ratio of each attempt; ends with status 1 if none reaches the promise."""
    keep_freed_memory()
    for _ in range(ATTEMPTS):
        measured = measure_mixed(None, torch.float32, "cpu", REPETITIONS)
        ratio = measured["one_ms"] / measured["mixed_ms"]
        print(f"64 tasks mixed: {ratio:.3f} of the rate of one task ({PROMISE} promised)")
        if ratio >= PROMISE:
            return
    sys.exit(1)


if __name__ == "__main__":
    main()
