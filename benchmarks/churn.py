"""Measures loads and unloads: a new version is uploaded, answers and is deleted, over and over; time and memory.

    python benchmarks/churn.py [--cycles 10000] [--base FOLDER] [--dtype bfloat16]

The disk's part is shown by writing the same bytes as durably, without a server, in turns with the uploads.
"""

import argparse
import tempfile
import time
from itertools import pairwise
from pathlib import Path
from statistics import median

from onebert_bench.pages import markdown_table
from onebert_bench.suite.processes import memory_bytes
from onebert_bench.workload import bitfit_delta
from onebert_encoder.base import load_base
from onebert_server.client import Client
from onebert_server.process import Server, serving
from onebert_store.disk import write_whole
from onebert_store.format import dumps

FILES = 50
ROWS = 10
TEXT = "the time is now and this text is about as long as most of them"


def main() -> None:
    """Prints a line for every tenth of the cycles."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cycles", type=int, default=10_000)
    parser.add_argument("--base", help="Hub id or folder; default MiniLM-L6")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    base = load_base(arguments.base)
    files = [dumps(bitfit_delta(base, seed)) for seed in range(FILES)]
    with (
        tempfile.TemporaryDirectory(prefix="onebert-bench-") as folder,
        serving(Path(folder) / "data", base=arguments.base, dtype=arguments.dtype) as server,
        Client(server.url) as client,
    ):
        # The first version is live from then on, and stays.
        client.push("churn", dumps(bitfit_delta(base, FILES)))
        lines = [_measure(client, server, files, Path(folder), arguments.cycles // ROWS) for _ in range(ROWS)]
    done = (f"{(row + 1) * (arguments.cycles // ROWS):,}" for row in range(ROWS))
    header = ["cycles", "upload, ms", "first answer, ms", "as durable a write, ms", "server, MB"]
    print(markdown_table(header, [[count, *line] for count, line in zip(done, lines, strict=True)]))


def _measure(client: Client, server: Server, files: list[bytes], folder: Path, cycles: int) -> list[str]:
    """Median milliseconds of an upload, the first answer after it and a bare write; megabytes afterwards."""
    times: list[tuple[float, ...]] = []
    for cycle in range(cycles):
        file = files[cycle % len(files)]
        moments = [time.perf_counter()]
        version = client.push("churn", file)["version"]
        moments.append(time.perf_counter())
        client.classify(f"churn@{version}", TEXT)
        moments.append(time.perf_counter())
        write_whole(folder / "as-durable", file)
        moments.append(time.perf_counter())
        client.delete_version("churn", version)
        times.append(tuple((b - a) * 1e3 for a, b in pairwise(moments)))
    columns = [f"{median(column):.1f}" for column in zip(*times, strict=True)]
    return [*columns, f"{memory_bytes(server.pid) / 1e6:.0f}"]


if __name__ == "__main__":
    main()
