"""What HTTP costs: `onebert serve` as one process and with front ends, in turns with the engine alone.

On a base that costs next to nothing, too: what the processes themselves can do, if only the device could.
"""

import multiprocessing
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from onebert_bench.engine_load import TEXTS, run_engine
from onebert_bench.http_load import mixed_requests_of, push_tasks, requests_of
from onebert_bench.load import Load, run_load
from onebert_bench.pages import markdown_table
from onebert_bench.suite.comparisons import goal_line
from onebert_bench.suite.measure import Settings
from onebert_bench.suite.processes import memory_bytes
from onebert_bench.suite.spread import Spread, ratio
from onebert_bench.suite.workers import Json
from onebert_bench.suite.workload import MINILM, TINY, Workload
from onebert_bench.workload import sentences
from onebert_server.process import Server, serving

FRONT_ENDS = (0, 1, 2)
DTYPE = "float32"
_SECONDS = 2.0
_MOST_REPETITIONS = 3  # each is a minute
_MOST_OVER_MS = 1.5
_LEAST_SHARE = 0.85


@dataclass(frozen=True)
class Traffic:
    """Closed-loop clients.

    Attributes:
        texts: in a request, each for another task.
    """

    base: str
    clients: int
    texts: int = 1


Key = tuple[Traffic, int | None]
"""A load: from whom, and with how many front ends; None is the engine alone, which takes no requests of many texts."""

ONE, MANY = Traffic(MINILM, 1), Traffic(MINILM, 64)
TRAFFIC = (ONE, MANY, Traffic(TINY, 64), Traffic(TINY, 8, 64))


@dataclass(frozen=True)
class Layouts:
    """What was found.

    Attributes:
        loads: of every repetition.
        memory: bytes of a server's processes after the load, by base and front ends.
    """

    loads: Mapping[Key, list[Load]]
    memory: Mapping[tuple[str, int], int]

    def as_json(self) -> Json:
        """For the results file."""
        loads = [
            {**vars(traffic), "front_ends": count, "loads": [load.as_json() for load in found]}
            for (traffic, count), found in self.loads.items()
        ]
        memory = [{"base": base, "front_ends": count, "bytes": held} for (base, count), held in self.memory.items()]
        return {"loads": loads, "memory": memory}

    def goals(self) -> list[list[str]]:
        """One client's wait beyond the engine's, and what share of the engine's rate many clients get."""
        lines = []
        for count in FRONT_ENDS:
            text, on = "HTTP, one client: ms over the engine, p50", f"{MINILM}, {_name(count)}"
            lines.append(goal_line(text, DTYPE, on, self._over_ms(ONE, count), _MOST_OVER_MS, at_least=False))
        for count in FRONT_ENDS:
            text, on = f"HTTP, {MANY.clients} clients: rate of the engine", f"{MINILM}, {_name(count)}"
            lines.append(goal_line(text, DTYPE, on, self._share(MANY, count), _LEAST_SHARE, at_least=True))
        return lines

    def page(self) -> str:
        """A line for each load."""
        header = ("base", "clients", "texts each", "layout", "texts/s", "of the engine's", "p50, ms", "memory, MB")
        about = (
            f"64 BitFit tasks, {DTYPE}; the load comes from the same cores. {TINY.capitalize()} stand for a device "
            "that costs nothing."
        )
        return f"{about}\n\n{markdown_table(header, [self._line(*key) for key in self.loads])}"

    def _line(self, traffic: Traffic, count: int | None) -> list[object]:
        loads = self.loads[traffic, count]
        rate, p50 = Spread.of([load.rate * traffic.texts for load in loads]), Spread.of(_p50(loads))
        share = self._share(traffic, count) if (traffic, None) in self.loads else "–"
        memory = "–" if count is None else f"{self.memory[traffic.base, count] / 1e6:.0f}"
        return [*vars(traffic).values(), _name(count), rate, share, p50, memory]

    def _over_ms(self, traffic: Traffic, count: int) -> Spread:
        own, engine = (_p50(self.loads[traffic, of]) for of in (count, None))
        return Spread.of([mine - bare for mine, bare in zip(own, engine, strict=True)])

    def _share(self, traffic: Traffic, count: int | None) -> Spread:
        return ratio(*([load.rate for load in self.loads[traffic, of]] for of in (count, None)))


def measure_layouts(settings: Settings, workloads: Mapping[str, Workload]) -> Layouts:
    """All servers of a base stand side by side with the same tasks and take turns."""
    loads: dict[Key, list[Load]] = {}
    memory: dict[tuple[str, int], int] = {}
    for base in dict.fromkeys(traffic.base for traffic in TRAFFIC):
        wanted = [traffic for traffic in TRAFFIC if traffic.base == base]
        with _as_served(), _servers(settings, workloads[base]) as servers:
            loads |= _measure_base(settings, workloads[base], servers, wanted)
            memory |= {(base, count): memory_bytes(server.pid) for count, server in servers.items()}
    return Layouts(loads, memory)


def _measure_base(
    settings: Settings, workload: Workload, servers: Mapping[int, Server], wanted: Sequence[Traffic]
) -> dict[Key, list[Load]]:
    texts = sentences(workload.base, TEXTS)
    found: defaultdict[Key, list[Load]] = defaultdict(list)
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(1, fresh) as sender, ProcessPoolExecutor(1, fresh) as alone:
        # The first turn is for warming up.
        for turn in range(min(settings.repetitions, _MOST_REPETITIONS) + 1):
            for traffic in wanted:
                done: dict[int | None, Load] = {}
                for count, server in servers.items():
                    requests = _requests(server.url, texts, traffic.texts)
                    done[count] = sender.submit(run_load, server.url, requests, traffic.clients, _SECONDS).result()
                if traffic.texts == 1:
                    of_engine = (str(workload.folder), DTYPE, settings.device, traffic.clients, _SECONDS)
                    done[None] = alone.submit(run_engine, *of_engine).result()
                for layout, load in done.items():
                    found[traffic, layout] += [load] if turn else []
    return found


def _requests(url: str, texts: Sequence[str], each: int) -> list[bytes]:
    return requests_of(url, texts) if each == 1 else mixed_requests_of(url, texts, each)


def _p50(loads: Sequence[Load]) -> list[float]:
    return [load.latency_ms(0.5) for load in loads]


@contextmanager
def _as_served() -> Iterator[None]:
    """The engine alone computes in a process that is started as `onebert` starts one (decision 6)."""
    before = os.environ.copy()
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _servers(settings: Settings, workload: Workload) -> Iterator[dict[int, Server]]:
    """Servers with so many front ends each, and the tasks of the load."""
    own = {"base": workload.folder, "dtype": DTYPE, "device": settings.device, "threads": settings.threads}
    with ExitStack() as stack:
        folders = [Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onebert-"))) for _ in FRONT_ENDS]
        servers = {
            count: stack.enter_context(serving(folder, **own, front_ends=count))
            for count, folder in zip(FRONT_ENDS, folders, strict=True)
        }
        for server in servers.values():
            push_tasks(server.url, workload.base)
        yield servers


def _name(front_ends: int | None) -> str:
    if not front_ends:
        return "the engine alone" if front_ends is None else "one process"
    return f"{front_ends} front end{'s' * (front_ends > 1)}"
