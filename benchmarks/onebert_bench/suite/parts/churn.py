"""Loads and unloads: uploads a version, asks it and deletes it, over and over; measures times and memory.

To show the disk's part of an upload, the same bytes are also written without a server, as durably, in turns with it.
"""

import math
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median

from onebert_bench.pages import markdown_table
from onebert_bench.processes import memory_bytes
from onebert_bench.suite.comparisons import goal_line
from onebert_bench.suite.measure import Settings
from onebert_bench.suite.peers.workers import Json
from onebert_bench.suite.spread import Spread
from onebert_bench.suite.workload import MINILM, Workload
from onebert_server.client import Client
from onebert_server.process import ChildServer, serving
from onebert_store.disk import write_whole

CYCLES = 400
DTYPE = "float32"
_ROUNDS = 10
_FILES = 50
_TEXT = "the time is now and this text is about as long as most of them"
_MOST_MS = 50.0
_MOST_GROWTH = 1.02  # the memory that the kernel reports varies by a percent by itself


@dataclass(frozen=True)
class Round:
    """Median milliseconds of each step over some cycles, and the server's memory after them.

    Attributes:
        write_ms: time of writing a file of the same size, as durably.
        memory: bytes of the server's processes.
    """

    upload_ms: float
    answer_ms: float
    write_ms: float
    memory: int


@dataclass(frozen=True)
class Churn:
    """All rounds."""

    rounds: Sequence[Round]

    def as_json(self) -> Json:
        """For the results file."""
        return {"rounds": [asdict(one) for one in self.rounds]}

    def goals(self) -> list[list[str]]:
        """Lines for the time from an upload to the first answer, and for the growth from first to last round."""
        besides = Spread.of([one.upload_ms + one.answer_ms - one.write_ms for one in self.rounds])
        first, *_, last = (one.memory for one in self.rounds)
        growth = Spread.of([last / first if first else math.nan])  # no memory is reported without /proc
        text = "upload to first answer besides the disk's part, ms"
        return [
            goal_line(text, DTYPE, MINILM, besides, _MOST_MS, at_least=False),
            goal_line(
                f"memory after {CYCLES} loads, of after {CYCLES // _ROUNDS}",
                DTYPE,
                MINILM,
                growth,
                _MOST_GROWTH,
                at_least=False,
            ),
        ]

    def page(self) -> str:
        """A table with a line for each round."""
        header = ("cycles", "upload, ms", "first answer, ms", "as durable a write, ms", "server, MB")
        lines = [
            (
                f"{number * CYCLES // _ROUNDS:,}",
                *(f"{ms:.1f}" for ms in (one.upload_ms, one.answer_ms, one.write_ms)),
                f"{one.memory / 1e6:.0f}",
            )
            for number, one in enumerate(self.rounds, 1)
        ]
        return markdown_table(header, lines)


def measure_churn(settings: Settings, workloads: Mapping[str, Workload]) -> Churn:
    """Measures a server that also holds another version, which is live and stays."""
    workload = workloads[MINILM]
    first, *files = (file.read_bytes() for file in workload.files("BitFit", _FILES))
    with (
        tempfile.TemporaryDirectory(prefix="onebert-bench-") as folder,
        serving(
            Path(folder) / "data",
            base=workload.folder,
            dtype=DTYPE,
            device=settings.device,
            threads=settings.threads,
        ) as server,
        Client(server.url) as client,
    ):
        client.push("churn", first)
        return Churn([_round(client, server, files, Path(folder)) for _ in range(_ROUNDS)])


def _round(client: Client, server: ChildServer, files: Sequence[bytes], folder: Path) -> Round:
    times: list[tuple[float, ...]] = []
    for cycle in range(CYCLES // _ROUNDS):
        file = files[cycle % len(files)]
        moments = [time.perf_counter()]
        version = client.push("churn", file).version
        moments.append(time.perf_counter())
        client.classify(f"churn@{version}", _TEXT)
        moments.append(time.perf_counter())
        write_whole(folder / "as-durable", file)
        moments.append(time.perf_counter())
        client.delete_version("churn", version)
        times.append(tuple((after - before) * 1e3 for before, after in pairwise(moments)))
    upload, answer, write = map(median, zip(*times, strict=True))
    return Round(upload, answer, write, memory_bytes(server.pid))
