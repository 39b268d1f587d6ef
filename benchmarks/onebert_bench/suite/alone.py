"""The parts of a run that measure OneBERT's server alone, without peers.

Front ends: `onebert serve` as one process and with front ends, in turns with the engine alone. A tiny base is measured,
too: its encoder takes next to no time, so its rate shows what the processes can do.

Loads and unloads: uploads a version, asks it and deletes it, over and over. To show the disk's part of an upload, the
same bytes are also written without a server, as durably, in turns with it.

Tasks held: ten thousand BERT-base tasks in memory, their bytes, and the time of a batch.
"""

import math
import time
from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import torch

from onebert_bench.compute import measure_resident
from onebert_bench.load import Load
from onebert_bench.machine import memory_bytes, process
from onebert_bench.numbers import Spread, ratio
from onebert_bench.report import Cell, Goal, Section
from onebert_bench.servers import Served, Serving, Traffic, loaded, measure_served
from onebert_bench.suite.measure import Settings
from onebert_bench.suite.workload import Workload
from onebert_bench.workload import BERT_BASE, MINILM, TINY
from onebert_server.client import Client
from onebert_server.engine.memory import keep_freed_memory
from onebert_server.process import ChildServer
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
    found, turns = {}, min(settings.repetitions, _MOST_REPETITIONS)
    for name, traffic in TRAFFIC.items():
        workload = workloads[name]
        what = Serving(str(workload.folder), "float32", settings.device, settings.threads)
        found[name] = measure_served(what, workload.base, FRONT_ENDS, traffic, turns, _SECONDS)
    return front_ends_section(found)


def front_ends_section(found: Mapping[str, Served]) -> Section:
    """A line for each load; goals for one client's latency beyond the engine's, and many clients' share of its rate."""
    served, goals = found[MINILM], []
    for count in FRONT_ENDS:
        own, engine = (_p50(served.loads[ONE, of]) for of in (count, None))
        over = Spread.of([mine - bare for mine, bare in zip(own, engine, strict=True)])
        on = f"{MINILM}, {_layout(count)}"
        goals.append(Goal("HTTP, one client: ms over the engine, p50", "float32", on, over, 0.5))
        what = f"HTTP, {MANY.clients} clients: rate of the engine"
        goals.append(Goal(what, "float32", on, _share(served, MANY, count), 0.92, at_least=True))
    header = ("base", "clients", "texts each", "layout", "texts/s", "of the engine's", "p50, ms", "memory, MB")
    about = (
        f"64 BitFit tasks, float32; the load comes from the same cores. {TINY.capitalize()} stand for a device that "
        "costs nothing."
    )
    rows = [_line(base, served, *key) for base, served in found.items() for key in served.loads]
    turns = {
        f"{base}, {traffic.clients} clients, {traffic.texts} texts each, {_layout(count)}": [
            load.as_json() for load in loads
        ]
        for base, served in found.items()
        for (traffic, count), loads in served.loads.items()
    }
    return Section("Front ends", about, header, rows, goals, turns)


def _line(base: str, served: Served, traffic: Traffic, count: int | None) -> list[Cell]:
    loads = served.loads[traffic, count]
    rate, p50 = Spread.of([load.rate * traffic.texts for load in loads]), Spread.of(_p50(loads))
    share = _share(served, traffic, count) if (traffic, None) in served.loads else None
    memory = None if count is None else f"{served.memory[count] / 1e6:.0f}"
    return [base, traffic.clients, traffic.texts, _layout(count), rate, share, p50, memory]


def _share(served: Served, traffic: Traffic, count: int | None) -> Spread:
    return ratio(*([load.rate for load in served.loads[traffic, of]] for of in (count, None)))


def _p50(loads: Sequence[Load]) -> list[float]:
    return [load.latency_ms(0.5) for load in loads]


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
    own = Serving(str(workload.folder), "float32", settings.device, settings.threads)
    with (
        loaded([first], **vars(own)) as server,
        Client(server.url) as client,
        TemporaryDirectory(prefix="onebert-bench-") as folder,
    ):
        return loads_section([_round(client, server, files, Path(folder)) for _ in range(ROUNDS)])


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


def loads_section(rounds: Sequence[Round]) -> Section:
    """A line for each round; goals for the time from an upload to the first answer, and for the memory's growth."""
    besides = Spread.of([one.upload_ms + one.answer_ms - one.write_ms for one in rounds])
    first, last = rounds[0].memory, rounds[-1].memory
    growth = Spread.of([last / first if first else math.nan])  # no memory is reported without /proc
    each = CYCLES // ROUNDS
    goals = [
        Goal("upload to first answer besides the disk's part, ms", "float32", MINILM, besides, 50),
        # The memory that the kernel reports varies by a percent by itself.
        Goal(f"memory after {CYCLES} loads, of after {each}", "float32", MINILM, growth, 1.02),
    ]
    header = ("cycles", "upload, ms", "first answer, ms", "as durable a write, ms", "server, MB")
    rows: list[list[Cell]] = [
        [number * each, one.upload_ms, one.answer_ms, one.write_ms, f"{one.memory / 1e6:.0f}"]
        for number, one in enumerate(rounds, 1)
    ]
    return Section("Loads and unloads", "", header, rows, goals)


def tasks_held(settings: Settings, workloads: Workloads) -> Section:
    """Measures in a process of its own, with the server's settings of the allocator."""
    of = (str(workloads[BERT_BASE].folder), torch.bfloat16, settings.device, TASKS, settings.repetitions)
    with process() as alone:
        alone.submit(keep_freed_memory)
        alone.submit(torch.set_num_threads, settings.threads)
        return held_section(alone.submit(measure_resident, *of).result(), on_cpu=settings.device == "cpu")


def held_section(found: Mapping[str, float], *, on_cpu: bool) -> Section:
    """Bytes, counted in three ways, and times; on a GPU the rows are not in the process's memory."""
    taken = found["process_bytes" if on_cpu else "held_bytes"] / 1e9
    goals = [Goal(f"{TASKS:,} BitFit tasks, GB", "bfloat16", BERT_BASE, taken, 1.4)]
    rows: list[list[Cell]] = [
        ["GB by arithmetic: 7h a layer, and the heads", found["arithmetic_bytes"] / 1e9],
        ["GB of the bank", found["held_bytes"] / 1e9],
        ["GB the process grew by", found["process_bytes"] / 1e9],
        ["ms to fold and install one", found["install_ms"]],
        ["ms for a batch of 64 tasks that lie side by side", found["few_ms"]],
        ["ms for a batch of 64 tasks spread over all", found["many_ms"]],
    ]
    return Section("Tasks held", "", (f"{TASKS:,} BitFit tasks of {BERT_BASE}, bfloat16", ""), rows, goals, found)


PARTS: Mapping[str, Callable[[Settings, Workloads], Section]] = {
    "front ends": front_ends,
    "loads and unloads": loads_and_unloads,
    "tasks held": tasks_held,
}
