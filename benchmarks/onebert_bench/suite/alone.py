"""The parts of a run that measure OneBERT's server alone, without peers.

Front ends: `onebert serve` as one process and with front ends, in turns with the engine alone. A tiny base is measured,
too: its encoder takes next to no time, so its rate shows what the processes can do.

Loads and unloads: uploads a version, asks it and deletes it, over and over. To show the disk's part of an upload, the
same bytes are also written without a server, as durably, in turns with it.

Tasks held: ten thousand BERT-base tasks in memory, their bytes, and the time of a batch.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from onebert_bench.compute import measure_resident
from onebert_bench.machine import memory_bytes, process
from onebert_bench.numbers import Spread, ratio
from onebert_bench.report import Cell, Section
from onebert_bench.servers import Served, Serving, Traffic, loaded, measure_served
from onebert_bench.suite.measure import Settings
from onebert_bench.suite.workload import Workload
from onebert_bench.workload import BERT_BASE, MINILM, TINY
from onebert_server.client import Client
from onebert_server.engine.memory import keep_freed_memory
from onebert_server.run.serving import ChildServer
from onebert_store.disk import write_whole

FRONT_ENDS = (0, 1, 2)
ONE, MANY = Traffic(1), Traffic(64)
TRAFFIC: Mapping[str, tuple[Traffic, ...]] = {MINILM: (ONE, MANY), TINY: (MANY, Traffic(8, 64))}
CYCLES, ROUNDS = 400, 10
TASKS = 10_000
_SECONDS = 2.0
_MOST_REPETITIONS = 3  # each takes a minute
_FILES = 50
_TEXT = "the time is now and this text is about as long as most of them"

Workloads = Mapping[str, Workload]


def front_ends(settings: Settings, workloads: Workloads) -> Section:
    """Measures the servers of one base, then those of the other."""
    measured, turns = {}, min(settings.repetitions, _MOST_REPETITIONS)
    for name, traffic in TRAFFIC.items():
        workload = workloads[name]
        what = Serving(str(workload.folder), "float32", threads=settings.threads)
        measured[name] = measure_served(what, workload.base, FRONT_ENDS, traffic, turns, _SECONDS)
    header = ("base", "clients", "texts each", "layout", "texts/s", "of the engine's", "p50, ms", "memory, MB")
    about = (
        f"64 BitFit tasks, float32; the load comes from the same cores. {TINY.capitalize()} stand for a device that "
        "costs nothing."
    )
    rows = [_line(base, served, *key) for base, served in measured.items() for key in served.loads]
    return Section("Front ends", about, header, rows)


def _line(base: str, served: Served, traffic: Traffic, count: int | None) -> list[Cell]:
    loads, engine = served.loads[traffic, count], served.loads.get((traffic, None))
    rate, p50 = ([load.rate for load in loads], [load.latency_ms(0.5) for load in loads])
    share = ratio(rate, [load.rate for load in engine]) if engine else None
    memory = None if count is None else f"{served.memory[count] / 1e6:.0f}"
    texts = Spread.of([traffic.texts * each for each in rate])
    return [base, traffic.clients, traffic.texts, _layout(count), texts, share, Spread.of(p50), memory]


def _layout(front_ends: int | None) -> str:
    if not front_ends:
        return "the engine alone" if front_ends is None else "one process"
    return f"{front_ends} front end{'s' * (front_ends > 1)}"


class Round(NamedTuple):
    """Median milliseconds of each step over some cycles, and the server's memory after them, in bytes."""

    upload_ms: float
    answer_ms: float
    write_ms: float
    memory: int


def loads_and_unloads(settings: Settings, workloads: Workloads) -> Section:
    """Measures a server that also holds another version, which is live and stays."""
    workload = workloads[MINILM]
    first, *files = (file.read_bytes() for file in workload.files("BitFit", _FILES))
    serving = Serving(str(workload.folder), "float32", threads=settings.threads)
    with (
        loaded([first], **vars(serving)) as server,
        Client(server.url) as client,
        TemporaryDirectory(prefix="onebert-bench-") as folder,
    ):
        rounds = [_round(client, server, files, Path(folder)) for _ in range(ROUNDS)]
    each = CYCLES // ROUNDS
    header = ("cycles", "upload, ms", "first answer, ms", "as durable a write, ms", "server, MB")
    rows: list[list[Cell]] = [
        [number * each, round_.upload_ms, round_.answer_ms, round_.write_ms, f"{round_.memory / 1e6:.0f}"]
        for number, round_ in enumerate(rounds, 1)
    ]
    return Section("Loads and unloads", "", header, rows)


def _round(client: Client, server: ChildServer, files: Sequence[bytes], folder: Path) -> Round:
    times: list[tuple[float, ...]] = []
    for cycle in range(CYCLES // ROUNDS):
        file = files[cycle % len(files)]
        moments = [time.perf_counter()]
        version = client.push("task-0", file).version
        moments.append(time.perf_counter())
        client.classify(f"task-0@{version}", _TEXT)
        moments.append(time.perf_counter())
        write_whole(folder / "as-durable", file)
        moments.append(time.perf_counter())
        client.delete_version("task-0", version)
        times.append(tuple((after - before) * 1e3 for before, after in pairwise(moments)))
    upload, answer, write = map(median, zip(*times, strict=True))
    return Round(upload, answer, write, memory_bytes(server.pid))


def tasks_held(settings: Settings, workloads: Workloads) -> Section:
    """Measures in a process of its own, with the server's settings of the allocator."""
    of = (str(workloads[BERT_BASE].folder), torch.bfloat16, "cpu", TASKS, settings.repetitions)
    with process() as alone:
        alone.submit(keep_freed_memory)
        alone.submit(torch.set_num_threads, settings.threads)
        resident = alone.submit(measure_resident, *of).result()
    rows: list[list[Cell]] = [
        ["GB by arithmetic: 7h a layer, and the heads", resident["arithmetic_bytes"] / 1e9],
        ["GB of the bank", resident["held_bytes"] / 1e9],
        ["GB the process grew by", resident["process_bytes"] / 1e9],
        ["ms to fold and install one", resident["install_ms"]],
        ["ms for a batch of 64 tasks that lie side by side", resident["few_ms"]],
        ["ms for a batch of 64 tasks spread over all", resident["many_ms"]],
    ]
    return Section("Tasks held", "", (f"{TASKS:,} BitFit tasks of {BERT_BASE}, bfloat16", ""), rows, resident)


PARTS: Mapping[str, Callable[[Settings, Workloads], Section]] = {
    "front ends": front_ends,
    "loads and unloads": loads_and_unloads,
    "tasks held": tasks_held,
}
