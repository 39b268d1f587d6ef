"""Measures what HTTP costs: `onebert serve` as one process and with front ends, in turns with the engine alone.

A tiny base is measured, too: its encoder takes next to no time, so its rate shows what the processes can do.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from onebert_bench.http_load import Served, Serving, Traffic, measure_served
from onebert_bench.load import Load
from onebert_bench.pages import markdown_table
from onebert_bench.suite.comparisons import goal_line
from onebert_bench.suite.measure import Settings
from onebert_bench.suite.peers.workers import Json
from onebert_bench.suite.spread import Spread, ratio
from onebert_bench.suite.workload import MINILM, TINY, Workload

FRONT_ENDS = (0, 1, 2)
DTYPE = "float32"
_SECONDS = 2.0
_MOST_REPETITIONS = 3  # each takes a minute
_MOST_OVER_MS = 0.6
_LEAST_SHARE = 0.85


ONE, MANY = Traffic(1), Traffic(64)
TRAFFIC: Mapping[str, tuple[Traffic, ...]] = {MINILM: (ONE, MANY), TINY: (MANY, Traffic(8, 64))}


@dataclass(frozen=True)
class Layouts:
    """The measurements of each base."""

    served: Mapping[str, Served]

    def as_json(self) -> Json:
        """For the results file."""
        return {
            base: {
                "memory": served.memory,
                "loads": [
                    {**vars(traffic), "front_ends": count, "turns": [load.as_json() for load in loads]}
                    for (traffic, count), loads in served.loads.items()
                ],
            }
            for base, served in self.served.items()
        }

    def goals(self) -> list[list[str]]:
        """Lines for the latency of one client beyond the engine's, and for many clients' share of the engine's rate."""
        served, lines = self.served[MINILM], []
        for count in FRONT_ENDS:
            text, on = "HTTP, one client: ms over the engine, p50", f"{MINILM}, {_name(count)}"
            lines.append(goal_line(text, DTYPE, on, _over_ms(served, count), _MOST_OVER_MS, at_least=False))
        for count in FRONT_ENDS:
            text, on = f"HTTP, {MANY.clients} clients: rate of the engine", f"{MINILM}, {_name(count)}"
            lines.append(goal_line(text, DTYPE, on, _share(served, MANY, count), _LEAST_SHARE, at_least=True))
        return lines

    def page(self) -> str:
        """A table with a line for each load."""
        header = ("base", "clients", "texts each", "layout", "texts/s", "of the engine's", "p50, ms", "memory, MB")
        about = (
            f"64 BitFit tasks, {DTYPE}; the load comes from the same cores. {TINY.capitalize()} stand for a device "
            "that costs nothing."
        )
        lines = [_line(base, served, *key) for base, served in self.served.items() for key in served.loads]
        return f"{about}\n\n{markdown_table(header, lines)}"


def measure_layouts(settings: Settings, workloads: Mapping[str, Workload]) -> Layouts:
    """Measures the servers of one base, then those of the other."""
    found = {}
    for name, traffic in TRAFFIC.items():
        workload = workloads[name]
        what = Serving(str(workload.folder), DTYPE, settings.device, settings.threads)
        turns = min(settings.repetitions, _MOST_REPETITIONS)
        found[name] = measure_served(what, workload.base, FRONT_ENDS, traffic, turns, _SECONDS)
    return Layouts(found)


def _line(base: str, served: Served, traffic: Traffic, count: int | None) -> list[object]:
    loads = served.loads[traffic, count]
    rate, p50 = Spread.of([load.rate * traffic.texts for load in loads]), Spread.of(_p50(loads))
    share = _share(served, traffic, count) if (traffic, None) in served.loads else "–"
    memory = "–" if count is None else f"{served.memory[count] / 1e6:.0f}"
    return [base, traffic.clients, traffic.texts, _name(count), rate, share, p50, memory]


def _over_ms(served: Served, count: int) -> Spread:
    own, engine = (_p50(served.loads[ONE, of]) for of in (count, None))
    return Spread.of([mine - bare for mine, bare in zip(own, engine, strict=True)])


def _share(served: Served, traffic: Traffic, count: int | None) -> Spread:
    return ratio(*([load.rate for load in served.loads[traffic, of]] for of in (count, None)))


def _p50(loads: Sequence[Load]) -> list[float]:
    return [load.latency_ms(0.5) for load in loads]


def _name(front_ends: int | None) -> str:
    if not front_ends:
        return "the engine alone" if front_ends is None else "one process"
    return f"{front_ends} front end{'s' * (front_ends > 1)}"
