"""What many registered versions cost a server: its start, its memory, hot and cold answers, lists.

    python benchmarks/serving/residency.py [--tasks 1000] [--base …]
    python benchmarks/serving/residency.py --heads --tasks 10000
    python benchmarks/serving/residency.py --heads --tasks 100000 --versions 10 --resident 10000

Through the same runtime that a server opens, without sockets, each time in a process of its own: with no task, which
says what the base takes, with few and with many. A task is a random BitFit delta with golden logits, so that every load
is proved. With `--heads` it is a classifier on the frozen base without golden logits, and all tasks have the same few
files: what is measured is how many there are. What a start has left is asked for until the bank is full, so that
answers are measured beside as many versions as it holds. A version that is not in memory was never loaded, or all were
evicted before.
"""

import asyncio
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import torch
from sqlalchemy import insert

from onebert_bench.machine import process, resident_bytes
from onebert_bench.numbers import percentile
from onebert_bench.script import options
from onebert_bench.workload import task_delta
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.maths.fold import fold_delta
from onebert_encoder.maths.predict import compute_golden
from onebert_server.access.context import own_work
from onebert_server.answering.gateway import Wanted
from onebert_server.engine.memory import collect_seldom, keep_freed_memory
from onebert_server.run.app import create_app
from onebert_server.run.opening import open_runtime
from onebert_server.runtime import Runtime
from onebert_server.settings import Settings, load_settings
from onebert_store.file.delta import Delta, manifest_json
from onebert_store.registry.database import ALIASES, TASKS, VERSIONS
from onebert_store.registry.records import VersionRecord
from onebert_store.registry.registry import Registry
from onebert_store.registry.store import open_store

TEXT = "The screen was broken when it came, and nobody answers the telephone."
# Answers of a version in memory, and of versions that are not.
HOT, COLD = 1000, 300
FEW = 64
# Bytes of a row of a classifier on the default base, about.
ROW_BYTES = 36_000


def main() -> None:
    """Fills two stores, a small one and a large one, and starts with each."""
    asked = options(__doc__, tasks=1000, versions=1, resident=0, heads=False, base=None)
    with tempfile.TemporaryDirectory(prefix="onebert-residency-") as folder:
        base = load_base(asked.base, dtype=torch.float32)
        for name, tasks in (("few", FEW), ("many", asked.tasks)):
            fill(Path(folder) / name, base, tasks, asked.versions, asked.heads)
        del base
        bound = {"bank_bytes": asked.resident * ROW_BYTES} if asked.resident else {}
        alone = 0
        for name in ("none", "few", "many"):
            settings = load_settings(base=asked.base, data_dir=Path(folder) / name, **bound)
            # In a process of its own, whose memory no other scene has used.
            with process() as executor:
                held = executor.submit(start_and_ask, settings, alone, asked.versions).result()
            alone = alone or held


def fill(folder: Path, base: Base, tasks: int, versions: int, heads: bool) -> None:
    """A store with tasks, the first version of each live."""
    with Registry.open(folder) as registry:
        if not heads:
            for seed in range(tasks * versions):
                registry.add(f"task-{seed % tasks:06d}", proved(base, seed))
            return
        made = (task_delta(base, "frozen", seed) for seed in range(versions))
        records = [registry.add("task-000000", delta)[0] for delta in made]
    with open_store(folder) as store, store.database.writing() as connection:
        for start in range(1, tasks, 1000):
            names = [f"task-{number:06d}" for number in range(start, min(tasks, start + 1000))]
            connection.execute(insert(TASKS), [{"name": name, "last_version": versions} for name in names])
            connection.execute(insert(VERSIONS), list(rows(names, records)))
            connection.execute(insert(ALIASES), [{"task": name, "alias": "live", "version": 1} for name in names])


def proved(base: Base, seed: int) -> Delta:
    """A BitFit task with golden logits."""
    delta = task_delta(base, "bitfit", seed)
    row = fold_delta(base, delta)
    golden = compute_golden(base, row, delta.manifest.max_length)
    return replace(delta, manifest=delta.manifest.model_copy(update={"golden": golden}))


def rows(names: Sequence[str], records: Sequence[VersionRecord]) -> Iterator[dict[str, Any]]:
    """The rows of versions."""
    now, manifest = datetime.now(UTC), manifest_json(records[0].manifest)
    for name in names:
        for record in records:
            version = {"task": name, "version": record.version, "digest": record.digest, "size": record.size}
            yield version | {"created_at": now, "manifest": manifest}


def start_and_ask(settings: Settings, alone: int, versions: int) -> int:
    """Starts with a store and prints what was seen; returns the bytes that the process held once it was ready.

    Args:
        settings: with the store's folder.
        alone: bytes that a process held which had no task.
        versions: of each task.
    """
    # As the command `onebert serve` does before it starts, and `collect_seldom` once it has started.
    keep_freed_memory()
    started = time.perf_counter()
    with open_runtime(settings) as runtime:
        ready = time.perf_counter() - started
        collect_seldom()
        held, counts = resident_bytes(), runtime.directory.counts()
        print(f"{counts['versions']:,} versions of {counts['tasks']:,} tasks: ready after {ready:.1f} s", flush=True)
        if counts["tasks"]:
            report_memory("by then", runtime, alone)
            asyncio.run(fill_bank(runtime))
            report_memory("once they were asked for", runtime, alone)
            asyncio.run(ask(runtime, versions))
    return held


def report_memory(when: str, runtime: Runtime, alone: int) -> None:
    """Prints how many versions are in memory, and what the process holds."""
    resident, held = runtime.directory.counts()["resident"], resident_bytes()
    above = (held - alone) / 1e6
    print(f"  {resident:,} in memory {when}; the process holds {held / 1e6:,.0f} MB, {above:,.0f} more than the base")


async def fill_bank(runtime: Runtime) -> None:
    """Asks for live versions one after the other, until one goes for another or there are no more."""
    counts = runtime.directory.counts
    for asked in range(1, counts()["tasks"] + 1):
        await seconds(runtime, f"task-{asked - 1:06d}")
        if counts()["resident"] < asked:
            return


async def ask(runtime: Runtime, versions: int) -> None:
    """Asks what is in memory and what is not, and lists the tasks; prints the times."""
    warm = [await seconds(runtime, "task-000000") for _ in range(2 * HOT)][HOT:]
    last = runtime.directory.counts()["tasks"]
    cold, pages = [], []
    for number in range(min(COLD, last - 1)):
        # Evicts all tasks from the bank, as if others had needed the room, where there is no other version to ask.
        while versions == 1 and (slot := runtime.directory.evict()) is not None:
            slot.release()
        cold.append(await seconds(runtime, f"task-{last - 1 - number:06d}@{min(versions, 2)}"))
    transport = httpx.ASGITransport(create_app(runtime))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as web:
        for number in range(20):
            started = time.perf_counter()
            page = await web.get("/v1/tasks", params={"prefix": f"task-0{number % 10}", "after": "task-000050"})
            pages.append(time.perf_counter() - started)
            page.raise_for_status()
    for what, times in (("in memory", warm), ("not in memory", cold), ("a page of the list", pages)):
        print(f"  {what}: p50 {percentile(times, 0.5) * 1e3:.1f} ms, p99 {percentile(times, 0.99) * 1e3:.1f} ms")


async def seconds(runtime: Runtime, ref: str) -> float:
    """Seconds until a version has answered a short text."""
    started = time.perf_counter()
    await runtime.answerer.answer(own_work("bench"), Wanted([ref]), [TEXT], lambda _, answered: answered)
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
