"""Writes benchmarks/results/serving-cost.md: requests per second and core in time, beside accuracy, for 300 tasks.

    python benchmarks/serving/cost.py [--data FOLDER] [--seconds 4] [--only OneBERT "FastAPI, fastText"] [--write]

Each server alone gets one short text a request, in an open loop from a process on the same machine. A search finds the
highest rate at which every request is answered and 99 of 100 within 20 ms. FOLDER holds `sst2`, as for
`onebert train`; without it, texts of the same lengths are made up. `--write` puts the table on the page.

Accuracy comes from the records of `benchmarks/results/beside.jsonl`, which training/beside.py wrote. A server that
cannot run here is a row with the reason.
"""

import json
import os
import signal
import sys
import tempfile
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import mean

import numpy as np
import torch

from onebert_bench.compute import measured_dtypes
from onebert_bench.load import Stream, run_load, run_open_load
from onebert_bench.machine import conditions, cpu_seconds, machine, memory_bytes, process
from onebert_bench.report import markdown_table, write_section
from onebert_bench.script import RESULTS, options, say
from onebert_bench.servers import TEXTS, loaded
from onebert_bench.suite.floors import CACHE, KINDS, floor_server, train_floor
from onebert_bench.suite.measure import Settings
from onebert_bench.suite.over_http import TASKS as MODELS
from onebert_bench.suite.over_http import merged_models
from onebert_bench.suite.peers import PeerFailed, python_of
from onebert_bench.suite.servers import OURS, PEER_SERVERS, Launch, Peer, free_port, running
from onebert_bench.suite.workload import Workload
from onebert_bench.sustained import Attempt, highest_rate
from onebert_bench.workload import MINILM, task_delta
from onebert_store.errors import OneBertError
from onebert_store.file.format import dumps
from onebert_training.data.examples import Split
from onebert_training.fit.settings import DEFAULT_METHOD

TASKS, MOST_MS = 300, 20.0
# Clients of the closed loop that finds the peak; more than one batch of any server.
PEAK_CLIENTS, PEAK_SECONDS = 32, 2.0
# Requests of the shortest open loop.
FEWEST = 5
# A random task of the default method takes seconds to make.
FILES = {"bitfit": TASKS, "frozen": TASKS, DEFAULT_METHOD: 8}
SIDES = {"bitfit": "onebert:--method=bitfit", "frozen": "onebert:--method=frozen", DEFAULT_METHOD: "onebert"}
SETS = {"sst2": "SST-2", "trec6": "TREC", "banking77": "BANKING77", "tweet_emotion": "tweets, emotion (macro F1)"}
FULL = "hf-full"

Start = Callable[[], AbstractContextManager[tuple[str, int]]]
"""Starts a server; gives its address and process id."""


@dataclass(frozen=True)
class Server:
    """A row of the table.

    Attributes:
        side: the side of training/beside.py that has its accuracy.
    """

    title: str
    tasks: int
    side: str
    peer: Peer
    start: Start


@dataclass(frozen=True)
class Found:
    """The measurements of a server, or the reason why there are none.

    Attributes:
        memory: bytes of its processes after the load.
    """

    server: Server
    best: Attempt | None = None
    memory: int = 0
    failed: str = ""


def main() -> None:
    """Measures every server, one after the other, and prints the page's tables."""
    asked = options(__doc__, data=None, seconds=4.0, only=[""], write=False)
    # SIGTERM becomes a normal exit, so that no server is left behind.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    workload = Workload(MINILM, CACHE / "work", Path(asked.data) if asked.data else None)
    texts = [str(text) for text in workload.texts("sst2", TEXTS)]
    measured = []
    with process() as sender:
        for server in servers(workload, texts):
            if any(part in server.title for part in asked.only):
                say(server.title)
                measured.append(measure(server, texts, sender, asked.seconds))
    at, scores = machine("cpu"), accuracies()
    given = f"python benchmarks/serving/cost.py{' --data FOLDER' * bool(asked.data)} --seconds {asked.seconds:g}"
    features = ", ".join((torch.backends.cpu.get_cpu_capability(), *measured_dtypes("cpu")))
    about = f"`{given}`, {at['date']}: {at['processor']} ({features}), {conditions()}."
    text = "\n\n".join((about, table(measured, scores)))
    print(text)
    if asked.write:
        write_section(RESULTS / "serving-cost.md", "cost", text)


def servers(workload: Workload, texts: Sequence[str]) -> Iterator[Server]:
    """The rows, in the order of the table."""
    for method, side in SIDES.items():
        for dtype in ("float32", "bfloat16"):
            title = f"OneBERT, {'frozen heads' if method == 'frozen' else method}, {dtype}"
            yield Server(title, TASKS, side, OURS, partial(onebert, workload, method, dtype))
    for name, tasks in (("fastapi", MODELS), ("fastapi", 1), ("infinity", 1)):
        for dtype in ("float32", "bfloat16") if tasks == 1 else ("float32",):
            peer = PEER_SERVERS[name]
            start = partial(whole_models, workload, peer, dtype, tasks)
            yield Server(f"{peer.title}, {dtype}", tasks, FULL, peer, start)
    for kind, title in KINDS.items():
        # The model's files are only there once the server starts.
        yield Server(title, TASKS, kind, floor_server(kind, Path()), partial(floor, kind, texts))


@contextmanager
def onebert(workload: Workload, method: str, dtype: str) -> Iterator[tuple[str, int]]:
    """Our server with random tasks of a method."""
    refuse_missing(dtype)
    files = [dumps(task_delta(workload.base, method, seed)) for seed in range(FILES[method])]
    each = (files[task % len(files)] for task in range(TASKS))
    with loaded(each, base=str(workload.folder), dtype=dtype) as server:
        yield server.url, server.pid


@contextmanager
def whole_models(workload: Workload, peer: Peer, dtype: str, tasks: int) -> Iterator[tuple[str, int]]:
    """A server with a whole model for each task."""
    refuse_missing(dtype)
    threads = os.cpu_count() or 1
    models = merged_models(Settings(threads, 1, CACHE), workload)
    python = python_of(peer.environment, CACHE / "environments")
    with running(peer, Launch(python, models, free_port(), threads, dtype, tasks), log()) as server:
        yield server


@contextmanager
def floor(kind: str, texts: Sequence[str]) -> Iterator[tuple[str, int]]:
    """A server of classifiers without an encoder, trained on the texts of the load with labels in turn."""
    rows = Split(tuple(texts), np.arange(len(texts)) % 2)
    with tempfile.TemporaryDirectory(prefix="onebert-bench-") as folder:
        train_floor(kind, {"train": rows, "validation": rows, "test": rows}, Path(folder))
        python = python_of("static", CACHE / "environments")
        launch = Launch(python, Path(folder), free_port(), 1, "float32", TASKS)
        with running(floor_server(kind, Path(folder)), launch, log()) as server:
            yield server


def refuse_missing(dtype: str) -> None:
    """Raises PeerFailed for a dtype that this processor does not multiply."""
    if dtype not in measured_dtypes("cpu"):
        raise PeerFailed(f"this processor does not multiply {dtype}")


def log() -> Path:
    """The file for a server's output."""
    folder = CACHE / "logs"
    folder.mkdir(parents=True, exist_ok=True)
    return folder / "cost.txt"


def measure(server: Server, texts: Sequence[str], sender: Executor, seconds: float) -> Found:
    """Starts a server and searches its rate; a server that cannot run has its reason."""
    try:
        with server.start() as (url, pid):
            turns = range(4 * TASKS)
            asked = ((f"task-{turn % server.tasks}", texts[turn * 7 % len(texts)]) for turn in turns)
            requests = [server.peer.request(task, text).encode(url) for task, text in asked]

            def attempt(rate: float) -> Attempt:
                before = cpu_seconds(pid)
                streams = {"load": Stream(requests, rate, 0, max(seconds, FEWEST / rate))}
                replies = sender.submit(run_open_load, url, streams).result()["load"]
                return Attempt(rate, replies, cpu_seconds(pid) - before)

            peak = sender.submit(run_load, url, requests, PEAK_CLIENTS, PEAK_SECONDS).result().rate
            if not peak:
                return Found(server, failed=f"it answered nothing in {PEAK_SECONDS:.0f} s")
            return Found(server, highest_rate(attempt, peak, MOST_MS), memory_bytes(pid))
    # OSError: the server closed a connection or died.
    except (PeerFailed, OneBertError, OSError) as failure:
        return Found(server, failed=str(failure))


def accuracies() -> Mapping[tuple[str, str], float]:
    """Side and set -> the set's own metric in points, the mean over the seeds."""
    records = map(json.loads, (RESULTS / "beside.jsonl").read_text(encoding="utf-8").splitlines())
    scores: defaultdict[tuple[str, str], list[float]] = defaultdict(list)
    for record in records:
        if record["per_class"] is None:
            scores[record["side"], record["set"]].append(100 * record["scores"][record["metric"]])
    return {key: mean(values) for key, values in scores.items()}


def table(measured: Sequence[Found], scores: Mapping[tuple[str, str], float]) -> str:
    """A line for each server."""
    head = ["server", "tasks", "requests/s", "and core", "CPU µs per request", "p99, ms", "memory, MB", *SETS.values()]
    lines = []
    for row in measured:
        of_sets = [f"{scores[key]:.1f}" if (key := (row.server.side, name)) in scores else "–" for name in SETS]
        lines.append([row.server.title, str(row.server.tasks), *cost(row), *of_sets])
    return markdown_table(head, lines)


def cost(measured: Found) -> list[str]:
    """The cells of a row between its tasks and its accuracy."""
    if measured.best is None:
        return [f"failed: {measured.failed}", *["–"] * 4]
    best, cores = measured.best, os.cpu_count() or 1
    held = best.holds(MOST_MS)
    rates = [f"{best.rate:,.0f}", f"{best.rate / cores:,.0f}"] if held else [f"none, not even {best.rate:.1f}", "–"]
    return [*rates, f"{best.cpu_us:,.0f}", f"{best.p99_ms:.1f}", f"{measured.memory / 1e6:,.0f}"]


if __name__ == "__main__":
    main()
