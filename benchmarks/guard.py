"""Checks two promises on speed, each as a ratio within one run, so that a slow machine slows both sides.

64 tasks mixed in one batch are answered at 0.95 of the rate of one task, or more; and a request takes one process at
most so many times the processor time of a bare uvicorn application that parses its JSON. A busy machine may still
disturb one side, so a check fails only if every attempt misses the promise.
"""

import sys

import torch

from onebert_bench.compute import measure_mixed
from onebert_bench.edge import edge_beside_bare
from onebert_server.engine.memory import keep_freed_memory

PROMISE = 0.95
ATTEMPTS = 5
REPETITIONS = 15

# By the number of clients.
EDGE = {1: 60.0, 64: 25.0}
EDGE_SECONDS = 3.0


def main() -> None:
    """Prints the ratios of each attempt; ends with status 1 if no attempt reaches a promise."""
    keep_freed_memory()
    if not (_mixed_tasks_are_as_fast() and _the_edge_is_light()):
        sys.exit(1)


def _mixed_tasks_are_as_fast() -> bool:
    for _ in range(ATTEMPTS):
        measured = measure_mixed(None, torch.float32, "cpu", REPETITIONS)
        ratio = measured["one_ms"] / measured["mixed_ms"]
        print(f"64 tasks mixed: {ratio:.3f} of the rate of one task ({PROMISE} promised)")
        if ratio >= PROMISE:
            return True
    return False


def _the_edge_is_light() -> bool:
    with edge_beside_bare() as times:
        for _ in range(ATTEMPTS):
            multiples = {clients: times(clients, EDGE_SECONDS) for clients in EDGE}
            shown = ", ".join(
                f"{multiple:.1f} for {clients} ({EDGE[clients]} promised)" for clients, multiple in multiples.items()
            )
            print(f"processor time of a request, in times of a bare application's, by clients: {shown}")
            if all(multiple <= EDGE[clients] for clients, multiple in multiples.items()):
                return True
    return False


if __name__ == "__main__":
    main()
