"""What changes of a registry cost on a database: uploads and moves of an alias, by one writer and by eight at once.

    python benchmarks/scaling/registry.py [--registry postgresql://…]

Blobs are files of 100 kB in a temporary folder; the database is SQLite in the same folder, or the one of the URL, which
has to be empty and is left with the tasks of this run. A writer is a thread with connections of its own.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import count
from pathlib import Path

import numpy as np

from onebert_store.file.delta import Delta
from onebert_store.file.manifest import parse_manifest
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import StoreAddress, join_store

LABELS, HIDDEN = 64, 384
CHANGES, WRITERS = 200, 8
SEEDS = count()


def main() -> None:
    """Prints a line for each kind of change."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--registry", metavar="URL")
    with tempfile.TemporaryDirectory() as folder, ExitStack() as opened:
        place = StoreAddress.within(Path(folder), parser.parse_args().registry)
        first = opened.enter_context(Registry.open(place))
        writers = [first, *(Registry(opened.enter_context(join_store(place))) for _ in range(WRITERS - 1))]
        for what, change in (("upload", _upload), ("move", _move), ("read a task", _read)):
            for many in (1, WRITERS):
                _print(f"{what}, {many} at once", writers[:many], change)


def _print(what: str, writers: list[Registry], change: Callable[[Registry, str], None]) -> None:
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
    p50, p99 = statistics.median(every), statistics.quantiles(every, n=100)[-1]
    print(f"{what:24} p50 {p50 * 1e3:6.2f} ms   p99 {p99 * 1e3:6.2f} ms   {rate:6.0f} a second")


def _upload(registry: Registry, task: str) -> None:
    rng = np.random.default_rng(next(SEEDS))
    manifest = {
        "format": 1,
        "base": {"name": "none", "model_type": "bert", "digest": "sha256:" + "0" * 64},
        "task_type": "single_label",
        "labels": [f"label {n}" for n in range(LABELS)],
        "pooling": "mean",
        "max_length": 128,
        "method": "frozen",
    }
    tensors = {
        "head.weight": rng.standard_normal((LABELS, HIDDEN), np.float32),
        "head.bias": np.zeros(LABELS, np.float32),
    }
    registry.add(task, Delta(parse_manifest(manifest), tensors))


def _move(registry: Registry, task: str) -> None:
    live = registry.task(task).aliases["live"].version
    registry.move_alias(task, "live", live % 2 + 1, live)


def _read(registry: Registry, task: str) -> None:
    registry.task(task)


if __name__ == "__main__":
    main()
