"""What changes of a registry cost on a database: uploads and moves of an alias, by one writer and by eight at once.

    python benchmarks/scaling/registry.py [--registry postgresql://…]

Blobs are files of 100 kB in a temporary folder; the database is SQLite in the same folder, or the one of the URL, which
has to be empty and is left with the tasks of this run. A writer is a thread with connections of its own.
"""

import tempfile
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import numpy as np

from onebert_bench.numbers import percentile
from onebert_bench.script import options
from onebert_store.file.delta import Delta
from onebert_store.file.manifest import parse_manifest
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import StoreAddress, join_store

LABELS, HIDDEN = 64, 384
CHANGES, WRITERS = 200, 8
SEEDS = count()
MANIFEST = {
    "format": 1,
    "base": {"name": "none", "model_type": "bert", "digest": "sha256:" + "0" * 64},
    "task_type": "single_label",
    "labels": [f"label {n}" for n in range(LABELS)],
    "pooling": "mean",
    "max_length": 128,
    "method": "frozen",
}


def main() -> None:
    """Prints a line for each kind of change."""
    asked = options(__doc__, registry=None)
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        place = StoreAddress.within(Path(folder), asked.registry)
        first = opened.enter_context(Registry.open(place))
        writers = [first, *(Registry(opened.enter_context(join_store(place))) for _ in range(WRITERS - 1))]
        for what, change in (("upload", upload), ("move", move), ("read a task", Registry.task)):
            for many in (1, WRITERS):
                report(f"{what}, {many} at once", writers[:many], change)


def report(what: str, writers: Sequence[Registry], change: Callable[[Registry, str], object]) -> None:
    """Has every writer make its share of the changes, and prints their times."""

    def timed(number: int) -> list[float]:
        seconds = []
        for _ in range(CHANGES // len(writers)):
            begun = time.perf_counter()
            change(writers[number], f"task-{number}")
            seconds.append(time.perf_counter() - begun)
        return seconds

    begun = time.perf_counter()
    with ThreadPoolExecutor(len(writers)) as pool:
        every = [second for seconds in pool.map(timed, range(len(writers))) for second in seconds]
    rate = len(every) / (time.perf_counter() - begun)
    p50, p99 = (percentile(every, share) * 1e3 for share in (0.5, 0.99))
    print(f"{what:24} p50 {p50:6.2f} ms   p99 {p99:6.2f} ms   {rate:6.0f} a second")


def upload(registry: Registry, task: str) -> None:
    """Adds a version."""
    head = np.random.default_rng(next(SEEDS)).standard_normal((LABELS, HIDDEN), np.float32)
    tensors = {"head.weight": head, "head.bias": np.zeros(LABELS, np.float32)}
    registry.add(task, Delta(parse_manifest(MANIFEST), tensors))


def move(registry: Registry, task: str) -> None:
    """Moves the alias to the other version."""
    live = registry.task(task).aliases["live"].version
    registry.move_alias(task, "live", live % 2 + 1, live)


if __name__ == "__main__":
    main()
