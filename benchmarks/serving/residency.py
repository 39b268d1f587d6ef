"""What a thousand tasks cost a server: its start, its memory, the first answer of a task not in memory, their list.

    python benchmarks/serving/residency.py [--tasks 1000] [--base …]
    python benchmarks/serving/residency.py --heads --tasks 10000

Everything is in one process, through the same runtime that a server opens, without sockets. A task is a random BitFit
delta with golden logits, so that every load is proved; with `--heads` it is a random classifier on the frozen base
without golden logits, of which ten thousand are written in minutes.
"""

import argparse
import asyncio
import gc
import statistics
import tempfile
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path

import httpx
import torch

from onebert_bench.workload import bitfit_delta, bitfit_tensors
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.maths.fold import fold
from onebert_encoder.maths.predict import compute_golden
from onebert_server.access.context import own_work
from onebert_server.answering.backend import Wanted
from onebert_server.app import create_app
from onebert_server.engine.memory import keep_freed_memory
from onebert_server.progress import Progress
from onebert_server.runtime import Runtime, open_runtime
from onebert_server.settings import load_settings
from onebert_store.file.delta import Delta
from onebert_store.registry.registry import Registry

TEXT = "The screen was broken when it came, and nobody answers the telephone."
TIMES = 50
LISTS = 20
TICK_S = 0.001


def main() -> None:
    """Fills a store, starts with it, then asks tasks that are in memory and tasks that are not."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=1000)
    parser.add_argument("--base", default=None)
    parser.add_argument("--heads", action="store_true", help="tasks that are a classifier alone, not proved")
    arguments = parser.parse_args()
    # As the command `onebert serve` does before it starts, and `gc.freeze` below once it has started.
    keep_freed_memory()
    with tempfile.TemporaryDirectory(prefix="onebert-residency-") as folder:
        _fill(Path(folder), arguments.base, arguments.tasks, _head if arguments.heads else _proved)
        settings = load_settings(base=arguments.base, data_dir=Path(folder))
        with open_runtime(settings.model_copy(update={"data_dir": Path(folder) / "none"})):
            pass  # compiles the kernels, which happens only at the first start on a machine
        started = time.perf_counter()
        with open_runtime(settings.model_copy(update={"data_dir": Path(folder) / "empty"})) as runtime:
            empty, held_empty = time.perf_counter() - started, _held()
        started, watched = time.perf_counter(), _Watched()
        with open_runtime(settings, watched) as runtime:
            full, bank = time.perf_counter() - started, runtime.directory.counts()["resident"]
            print(f"start without tasks: {empty:.1f} s; with {arguments.tasks}: {full:.1f} s, {bank} in memory")
            print(f"the process then holds {(_held() - held_empty) / 1e6:.0f} MB more than without tasks")
            print(_per_version(runtime, watched.held))
            gc.freeze()
            asyncio.run(_ask(runtime))
            asyncio.run(_list(runtime, arguments.tasks))


class _Watched(Progress):
    """Notes what the process holds while versions are loaded: how many are, and bytes."""

    def __init__(self) -> None:
        super().__init__()
        self.held: list[tuple[int, int]] = []

    def advance(self, steps: int = 1) -> None:
        super().advance(steps)
        if self.phase == "versions":
            self.held.append((self.done, _held()))


def _fill(folder: Path, name: str | None, tasks: int, make: Callable[[Base, int], Delta]) -> None:
    base = load_base(name, dtype=torch.float32)
    with Registry.open(folder) as registry:
        for seed in range(tasks):
            registry.add(f"task-{seed:05d}", make(base, seed))


def _head(base: Base, seed: int) -> Delta:
    delta = bitfit_delta(base, seed)
    head = {name: tensor for name, tensor in delta.tensors.items() if name.startswith("head.")}
    return Delta(delta.manifest.model_copy(update={"method": "frozen"}), head)


def _proved(base: Base, seed: int) -> Delta:
    delta = bitfit_delta(base, seed)
    row = fold(base, bitfit_tensors(base, seed), delta.manifest.pooling)
    golden = compute_golden(base, row, delta.manifest.max_length)
    return replace(delta, manifest=delta.manifest.model_copy(update={"golden": golden}))


def _per_version(runtime: Runtime, held: list[tuple[int, int]]) -> str:
    """What a version takes in memory, from the second half of the start: buffers have grown by then."""
    rows = [version.row_bytes for version in runtime.directory.versions()]
    row = sum(rows) / len(rows)
    # A start loads some dozens of versions at a time, and says so behind them.
    (first, before), (last, after) = held[len(held) // 2], held[-1]
    if first == last:
        return f"a version's row takes {row:,.0f} bytes; of so few versions the rest cannot be told"
    return f"a version takes {(after - before) / (last - first):,.0f} bytes, {row:,.0f} of them its row"


async def _ask(runtime: Runtime) -> None:
    names = [entry.name for entry in runtime.directory.tasks("", TIMES)]
    warm = [await _seconds(runtime, name) for name in names]
    warm = [await _seconds(runtime, name) for name in names]
    cold = []
    for name in names:
        # Evicts all tasks from the bank, as if others had needed the room.
        while (slot := runtime.directory.evict()) is not None:
            runtime.residents.give_back(slot)
        cold.append(await _seconds(runtime, name))
    for what, seconds in (("in memory", warm), ("not in memory", cold)):
        p99 = sorted(seconds)[int(0.99 * len(seconds))]
        print(f"a task {what}: median {statistics.median(seconds) * 1e3:.1f} ms, p99 {p99 * 1e3:.1f} ms")


async def _list(runtime: Runtime, tasks: int) -> None:
    """Reads the list of tasks to its end, and sees for how long the event loop is held meanwhile."""
    pages: list[float] = []
    stalls = []
    transport = httpx.ASGITransport(create_app(runtime))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as web:
        idle = statistics.median([await _stall(asyncio.sleep(0.1)) for _ in range(LISTS)])
        for _ in range(LISTS):
            stalls.append(await _stall(_read_pages(web, pages)))
    print(
        f"the list of {tasks} tasks, {LISTS} times: a page takes {statistics.median(pages) * 1e3:.0f} ms "
        f"(at most {max(pages) * 1e3:.0f}) and all {len(pages) // LISTS} hold the event loop for at most "
        f"{statistics.median(stalls) * 1e3:.1f} ms at once (nothing to do: {idle * 1e3:.1f}); medians"
    )


async def _read_pages(web: httpx.AsyncClient, seconds: list[float]) -> None:
    after: str | None = ""
    while after is not None:
        started = time.perf_counter()
        page = await web.get("/v1/tasks", params={"after": after})
        seconds.append(time.perf_counter() - started)
        page.raise_for_status()
        after = (await asyncio.to_thread(page.json))["next"]


async def _stall(work: Awaitable[None]) -> float:
    """Seconds of the longest time for which the event loop ran nothing else while `work` went on."""
    going, longest = asyncio.ensure_future(work), 0.0
    while not going.done():
        started = time.perf_counter()
        await asyncio.sleep(TICK_S)
        longest = max(longest, time.perf_counter() - started - TICK_S)
    await going
    return longest


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
