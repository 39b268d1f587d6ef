"""What HTTP costs: `onebert serve` as one process and with front ends, in turns with the engine alone."""

import multiprocessing
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from onebert_bench.engine_load import TEXTS, run_engine
from onebert_bench.http_load import push_tasks, requests_of
from onebert_bench.load import Load, run_load
from onebert_bench.pages import markdown_table
from onebert_bench.suite.comparisons import goal_line
from onebert_bench.suite.measure import Settings
from onebert_bench.suite.spread import Spread, ratio
from onebert_bench.suite.workers import Json
from onebert_bench.suite.workload import MINILM, Workload
from onebert_bench.workload import sentences
from onebert_server.process import serving

CLIENTS = (1, 64)
FRONT_ENDS = (0, 1, 2)
DTYPE = "float32"
_SECONDS = 2.0
_MOST_REPETITIONS = 3  # each is half a minute
_MOST_OVER_MS = 1.5
_LEAST_SHARE = 0.85

Key = tuple[int, int | None]
"""Clients and front ends; None is the engine alone."""


@dataclass(frozen=True)
class Layouts:
    """Loads of every repetition."""

    loads: Mapping[Key, list[Load]]

    def as_json(self) -> Json:
        """For the results file."""
        return {
            f"{clients} clients, {_name(front_ends)}": [load.as_json() for load in loads]
            for (clients, front_ends), loads in self.loads.items()
        }

    def goals(self) -> list[list[str]]:
        """One client's wait beyond the engine's, and what share of the engine's rate many clients get."""
        few, many = CLIENTS
        lines = []
        for count in FRONT_ENDS:
            over = Spread.of(
                [own - engine for own, engine in zip(self._p50(few, count), self._p50(few, None), strict=True)]
            )
            text, on = f"HTTP, {few} client: ms over the engine, p50", f"{MINILM}, {_name(count)}"
            lines.append(goal_line(text, DTYPE, on, over, _MOST_OVER_MS, at_least=False))
        for count in FRONT_ENDS:
            text, on = f"HTTP, {many} clients: rate of the engine", f"{MINILM}, {_name(count)}"
            lines.append(goal_line(text, DTYPE, on, self._share(many, count), _LEAST_SHARE, at_least=True))
        return lines

    def page(self) -> str:
        """A line for each number of clients and layout."""
        header = ("clients", "layout", "requests/s", "of the engine's", "p50, ms")
        lines = [
            (
                clients,
                _name(count),
                Spread.of([load.rate for load in loads]),
                self._share(clients, count),
                Spread.of(self._p50(clients, count)),
            )
            for (clients, count), loads in self.loads.items()
        ]
        about = f"One text a request, 64 BitFit tasks of {MINILM}, {DTYPE}; the load comes from the same cores."
        return f"{about}\n\n{markdown_table(header, lines)}"

    def _share(self, clients: int, count: int | None) -> Spread:
        return ratio(*([load.rate for load in self.loads[clients, of]] for of in (count, None)))

    def _p50(self, clients: int, count: int | None) -> list[float]:
        return [load.latency_ms(0.5) for load in self.loads[clients, count]]


def measure_layouts(settings: Settings, workloads: Mapping[str, Workload]) -> Layouts:
    """All servers stand side by side with the same tasks and take turns; a turn that does not count comes first."""
    base = workloads[MINILM].base
    texts = sentences(base, TEXTS)
    folder = str(workloads[MINILM].folder)
    found: defaultdict[Key, list[Load]] = defaultdict(list)
    fresh = multiprocessing.get_context("spawn")
    with (
        _as_served(),
        _servers(settings, folder) as urls,
        ProcessPoolExecutor(1, fresh) as sender,
        ProcessPoolExecutor(1, fresh) as alone,
    ):
        for url in urls.values():
            push_tasks(url, base)
        for turn in range(min(settings.repetitions, _MOST_REPETITIONS) + 1):
            for clients in CLIENTS:
                done: dict[int | None, Load] = {
                    count: sender.submit(run_load, url, requests_of(url, texts), clients, _SECONDS).result()
                    for count, url in urls.items()
                }
                done[None] = alone.submit(run_engine, folder, DTYPE, settings.device, clients, _SECONDS).result()
                for count, load in done.items():
                    found[clients, count] += [load] if turn else []
    return Layouts(found)


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
def _servers(settings: Settings, base: str) -> Iterator[dict[int, str]]:
    """Addresses of servers with so many front ends each."""
    own = {"base": base, "dtype": DTYPE, "device": settings.device, "threads": settings.threads}
    with ExitStack() as stack:
        yield {
            count: stack.enter_context(
                serving(Path(stack.enter_context(tempfile.TemporaryDirectory())), **own, front_ends=count)
            ).url
            for count in FRONT_ENDS
        }


def _name(front_ends: int | None) -> str:
    if not front_ends:
        return "the engine alone" if front_ends is None else "one process"
    return f"{front_ends} front end{'s' * (front_ends > 1)}"
