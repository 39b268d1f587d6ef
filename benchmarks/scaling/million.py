"""What a million registered versions cost a server: its start, its memory, hot and cold answers, lists.

    python benchmarks/scaling/million.py [--tasks 100000] [--versions 10] [--resident 10000] [--loading] [--base …]

Through the same runtime that a server opens, without sockets, each time in a process of its own: with no task, which
says what the base takes, with few and with many. The versions of a task are classifiers on the frozen base, and
every task has the same few files: what is measured is how many there are. What a start has left is asked for until the
bank is full, so that answers are measured beside as many versions as it holds; with `--loading` they are measured
before, while the server loads what its start has left.
"""

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import httpx
import torch
from sqlalchemy import insert

from onebert_bench.ranks import percentile
from onebert_bench.workload import bitfit_delta
from onebert_encoder.base.base import Base, load_base
from onebert_server.access.context import own_work
from onebert_server.answering.backend import Wanted
from onebert_server.app import create_app
from onebert_server.engine.memory import keep_freed_memory
from onebert_server.garbage import collect_seldom
from onebert_server.runtime import Runtime, open_runtime
from onebert_server.settings import Settings, load_settings
from onebert_store.file.canonical import manifest_json
from onebert_store.file.delta import Delta
from onebert_store.registry.database import ALIASES, TASKS, VERSIONS, writing
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
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tasks", type=int, default=100_000)
    parser.add_argument("--versions", type=int, default=10)
    parser.add_argument("--resident", type=int, default=10_000, help="versions that the bank holds")
    parser.add_argument("--loading", action="store_true", help="ask while the rest is loaded")
    parser.add_argument("--base")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="onebert-million-") as folder:
        base = load_base(asked.base, dtype=torch.float32)
        for name, tasks in (("few", FEW), ("many", asked.tasks)):
            fill(Path(folder) / name, base, tasks, asked.versions)
        del base
        alone = 0
        for name in ("none", "few", "many"):
            settings = load_settings(
                base=asked.base, data_dir=Path(folder) / name, bank_bytes=asked.resident * ROW_BYTES
            )
            # In a process of its own, whose memory no other scene has used.
            with ProcessPoolExecutor(1, get_context("spawn")) as process:
                held = process.submit(start_and_ask, settings, alone, asked.loading).result()
            alone = alone or held


def start_and_ask(settings: Settings, alone: int, loading: bool) -> int:
    """Starts with a store and prints what was seen; returns the bytes that the process held once it was ready.

    Args:
        settings: with the store's folder.
        alone: bytes that a process held which had no task.
        loading: whether to ask while the rest is loaded.
    """
    # As the command `onebert serve` does before it starts, and `collect_seldom` once it has started.
    keep_freed_memory()
    started = time.perf_counter()
    with open_runtime(settings) as runtime:
        ready = time.perf_counter() - started
        collect_seldom()
        held, counts = held_bytes(), runtime.directory.counts()
        print(f"{counts['versions']:,} versions of {counts['tasks']:,} tasks: ready after {ready:.1f} s", flush=True)
        if counts["tasks"]:
            report_memory("by then", runtime, alone)
            if not loading:
                asyncio.run(fill_bank(runtime))
                report_memory("once they were asked for", runtime, alone)
            asyncio.run(ask(runtime))
    return held


def report_memory(when: str, runtime: Runtime, alone: int) -> None:
    """Prints how many versions are in memory, and what the process holds."""
    resident, held = runtime.directory.counts()["resident"], held_bytes()
    above = (held - alone) / 1e6
    print(f"  {resident:,} in memory {when}; the process holds {held / 1e6:,.0f} MB, {above:,.0f} more than the base")


async def fill_bank(runtime: Runtime) -> None:
    """Asks for live versions one after the other, until one goes for another or there are no more."""
    counts = runtime.directory.counts
    for asked in range(1, counts()["tasks"] + 1):
        await seconds(runtime, f"task-{asked - 1:06d}")
        if counts()["resident"] < asked:
            return


def fill(folder: Path, base: Base, tasks: int, versions: int) -> None:
    """A store whose tasks all have the same versions, the first of them live."""
    with Registry.open(folder) as registry:
        records = [registry.add("task-000000", head(base, seed))[0] for seed in range(versions)]
    with open_store(folder) as store, writing(store.database) as connection:
        for start in range(1, tasks, 1000):
            names = [f"task-{number:06d}" for number in range(start, min(tasks, start + 1000))]
            connection.execute(insert(TASKS), [{"name": name, "last_version": versions} for name in names])
            connection.execute(insert(VERSIONS), list(rows(names, records)))
            connection.execute(insert(ALIASES), [{"task": name, "alias": "live", "version": 1} for name in names])


def rows(names: Sequence[str], records: Sequence[VersionRecord]) -> Iterator[dict[str, Any]]:
    """The rows of versions."""
    now, manifest = datetime.now(UTC), manifest_json(records[0].manifest)
    for name in names:
        for one in records:
            own = {"task": name, "version": one.version, "digest": one.digest, "size": one.size}
            yield own | {"created_at": now, "manifest": manifest}


def head(base: Base, seed: int) -> Delta:
    """A classifier on the frozen base."""
    delta = bitfit_delta(base, seed)
    tensors = {name: tensor for name, tensor in delta.tensors.items() if name.startswith("head.")}
    return Delta(delta.manifest.model_copy(update={"method": "frozen"}), tensors)


async def ask(runtime: Runtime) -> None:
    """Asks what is in memory and what is not, and lists the tasks; prints the times."""
    hot = "task-000000"
    warm = [await seconds(runtime, hot) for _ in range(2 * HOT)][HOT:]
    last = runtime.directory.counts()["tasks"]
    cold = [await seconds(runtime, f"task-{last - 1 - number % last:06d}@2") for number in range(min(COLD, last - 1))]
    pages = []
    async with httpx.AsyncClient(
        transport=httpx.ASGITransport(create_app(runtime)), base_url="http://localhost"
    ) as web:
        for number in range(20):
            started = time.perf_counter()
            page = await web.get("/v1/tasks", params={"prefix": f"task-0{number % 10}", "after": "task-000050"})
            pages.append(time.perf_counter() - started)
            page.raise_for_status()
    for what, found in (("in memory", warm), ("not in memory", cold), ("a page of the list", pages)):
        p50, p99 = statistics.median(found) * 1e3, percentile(found, 0.99) * 1e3
        print(f"  {what}: p50 {p50:.1f} ms, p99 {p99:.1f} ms")


async def seconds(runtime: Runtime, ref: str) -> float:
    """Seconds until a version has answered a short text."""
    pieces = runtime.base.tokenizer.split([TEXT], runtime.base.spec.max_length)
    started = time.perf_counter()
    await runtime.admission.compute(own_work("bench"), Wanted([ref]), pieces)
    return time.perf_counter() - started


def held_bytes() -> int:
    """Bytes that the process holds, as the operating system counts them."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * 4096


if __name__ == "__main__":
    main()
