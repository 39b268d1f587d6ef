"""Ten thousand BERT-base tasks in memory: their bytes, and the time of a batch."""

import multiprocessing
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass

import torch

from onebert_bench.compute import measure_resident
from onebert_bench.pages import markdown_table
from onebert_bench.suite.comparisons import goal_line
from onebert_bench.suite.measure import Settings
from onebert_bench.suite.peers.workers import Json
from onebert_bench.suite.spread import Spread
from onebert_bench.suite.workload import BERT_BASE, Workload
from onebert_server.engine.memory import keep_freed_memory

TASKS = 10_000
DTYPE = "bfloat16"
_MOST_GB = 1.4


@dataclass(frozen=True)
class Holding:
    """The result of `measure_resident`.

    Attributes:
        found: its numbers.
        on_cpu: whether the rows are in the process's memory rather than a GPU's.
    """

    found: Mapping[str, float]
    on_cpu: bool

    def as_json(self) -> Json:
        """For the results file."""
        return dict(self.found)

    def goals(self) -> list[list[str]]:
        """The line for the memory that the tasks take."""
        taken = Spread.of([self.found["process_bytes" if self.on_cpu else "held_bytes"] / 1e9])
        return [goal_line(f"{TASKS:,} BitFit tasks, GB", DTYPE, BERT_BASE, taken, _MOST_GB, at_least=False)]

    def page(self) -> str:
        """A table of bytes, counted in three ways, and times."""
        lines = [
            ("GB by arithmetic: 7h a layer, and the heads", f"{self.found['arithmetic_bytes'] / 1e9:.2f}"),
            ("GB of the bank", f"{self.found['held_bytes'] / 1e9:.2f}"),
            ("GB the process grew by", f"{self.found['process_bytes'] / 1e9:.2f}"),
            ("ms to fold and install one", f"{self.found['install_ms']:.2f}"),
            ("ms for a batch of 64 tasks that lie side by side", f"{self.found['few_ms']:.0f}"),
            ("ms for a batch of 64 tasks spread over all", f"{self.found['many_ms']:.0f}"),
        ]
        return markdown_table((f"{TASKS:,} BitFit tasks of {BERT_BASE}, {DTYPE}", ""), lines)


def measure_holding(settings: Settings, workloads: Mapping[str, Workload]) -> Holding:
    """Measures in a process of its own, with the server's settings of the allocator."""
    of = (str(workloads[BERT_BASE].folder), getattr(torch, DTYPE), settings.device, TASKS, settings.repetitions)
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn"), _begin, (settings.threads,)) as alone:
        return Holding(alone.submit(measure_resident, *of).result(), settings.device == "cpu")


def _begin(threads: int) -> None:
    keep_freed_memory()
    torch.set_num_threads(threads)
