"""What a thousand tasks cost a server: its start, its memory, and the first answer of a task that is not in memory.

    python benchmarks/residency.py [--tasks 1000] [--base …]

Everything is in one process, through the same runtime that a server opens: no HTTP. A task is a random BitFit delta
with golden logits, so that every load is proved.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import torch

from onebert_bench.workload import bitfit_delta, bitfit_tensors
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.predict import compute_golden
from onebert_server.answering.backend import Wanted
from onebert_server.context import own_work
from onebert_server.runtime import Runtime, open_runtime
from onebert_server.settings import load_settings
from onebert_store.file.delta import Delta
from onebert_store.registry.registry import Registry

TEXT = "The screen was broken when it came, and nobody answers the telephone."
TIMES = 50


def main() -> None:
    """Fills a store, starts with it, then asks tasks that are in memory and tasks that are not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--base", default=None)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onebert-residency-") as folder:
        _fill(Path(folder), arguments.base, arguments.tasks)
        settings = load_settings(base=arguments.base, data_dir=Path(folder))
        with open_runtime(settings.model_copy(update={"data_dir": Path(folder) / "none"})):
            pass  # compiles what is compiled at the first start of a machine
        started = time.perf_counter()
        with open_runtime(settings.model_copy(update={"data_dir": Path(folder) / "empty"})) as runtime:
            empty, held_empty = time.perf_counter() - started, _held()
        started = time.perf_counter()
        with open_runtime(settings) as runtime:
            full, bank = time.perf_counter() - started, runtime.directory.counts()["resident"]
            print(f"start without tasks: {empty:.1f} s; with {arguments.tasks}: {full:.1f} s, {bank} in memory")
            print(f"the process then holds {(_held() - held_empty) / 1e6:.0f} MB more than without tasks")
            asyncio.run(_ask(runtime))


def _fill(folder: Path, name: str | None, tasks: int) -> None:
    base = load_base(name, dtype=torch.float32)
    with Registry.open(folder) as registry:
        for seed in range(tasks):
            registry.add(f"task-{seed:05d}", _proved(base, seed))


def _proved(base: Base, seed: int) -> Delta:
    delta = bitfit_delta(base, seed)
    row = fold(base, bitfit_tensors(base, seed), delta.manifest.pooling)
    golden = compute_golden(base, row, delta.manifest.max_length)
    return replace(delta, manifest=delta.manifest.model_copy(update={"golden": golden}))


async def _ask(runtime: Runtime) -> None:
    names = [entry.name for entry in runtime.directory.tasks("", TIMES)]
    warm = [await _seconds(runtime, name) for name in names]
    warm = [await _seconds(runtime, name) for name in names]
    cold = []
    for name in names:
        # All of them leave the bank, as they would if others had needed the room.
        while (slot := runtime.directory.evict()) is not None:
            runtime.residents.give_back(slot)
        cold.append(await _seconds(runtime, name))
    for what, seconds in (("in memory", warm), ("not in memory", cold)):
        p99 = sorted(seconds)[int(0.99 * len(seconds))]
        print(f"a task {what}: median {statistics.median(seconds) * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms")


async def _seconds(runtime: Runtime, name: str) -> float:
    pieces = runtime.base.tokenizer.split([TEXT], runtime.base.spec.max_length)
    started = time.perf_counter()
    await runtime.admission.compute(own_work("bench"), Wanted([name]), pieces)
    return time.perf_counter() - started


def _held() -> int:
    """Bytes that the process holds, as the operating system counts them."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


if __name__ == "__main__":
    main()
