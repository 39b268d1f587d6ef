"""Section on serving over HTTP: front ends beside a GPU, under load from several processes."""

import multiprocessing
import os
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from onebert_bench.gpu.made import MINILM, Made
from onebert_bench.gpu.section import Cell, Goal, Section
from onebert_bench.http_load import push_tasks, requests_for
from onebert_bench.load import Load, run_load
from onebert_bench.ranks import percentile
from onebert_bench.workload import sentences
from onebert_encoder.base.base import load_base
from onebert_server.process import serving

_TEXTS = 256


def http(made: Made) -> Section:
    """MiniLM-L6's shape, 64 BitFit tasks, one text a request, as many front ends as there are cores to spare."""
    cores = os.cpu_count() or 1
    folder = made.base_folder(MINILM)
    base = load_base(str(folder))
    texts = sentences(base, _TEXTS)
    seconds = 4.0 if not made.scale.tiny else 0.3
    rows: list[list[Cell]] = []
    best = 0.0
    for front_ends, senders, clients in _layouts(cores, made.scale.tiny):
        with tempfile.TemporaryDirectory(prefix="onebert-bench-") as data:
            what = {"base": folder, "dtype": "bfloat16" if made.device != "cpu" else "float32", "device": made.device}
            with serving(Path(data), **what, front_ends=front_ends) as server:
                push_tasks(server.url, base)
                loads = _loaded(server.url, requests_for(server.url, texts, 1), senders, clients, seconds)
        rate = sum(load.rate for load in loads)
        latencies = [value for load in loads for value in load.latencies_ms]
        used = sum(load.cpu_seconds / load.seconds for load in loads)
        refused = sum(load.refused for load in loads)
        p50, p99 = (percentile(latencies, share) if latencies else None for share in (0.5, 0.99))
        rows.append([front_ends, senders * clients, rate, p50, p99, refused, used])
        best = max(best, rate)
    goals = [Goal(f"single texts a second over HTTP, {cores} cores", best, 20_000.0, at_least=True)]
    header = ("front ends", "clients", "texts/s", "p50 ms", "p99 ms", "refused", "cores of the clients")
    about = f"One text a request, closed loop, 64 tasks; the clients take their share of the {cores} cores."
    return Section("HTTP", about, header, rows, goals)


def _layouts(cores: int, tiny: bool) -> list[tuple[int, int, int]]:
    """Each layout to measure: (front ends, processes that send, clients of each)."""
    if tiny:
        return [(1, 1, 2)]
    most = max(1, cores - 5)
    return [(0, 1, 1), (0, 2, 64), (most // 2, 3, 128), (most, 4, 128)]


def _loaded(url: str, requests: Sequence[bytes], senders: int, clients: int, seconds: float) -> list[Load]:
    """The loads of several processes that send at once, after a short warm-up."""
    fresh = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(senders, fresh) as pool:
        for each in (min(1.0, seconds), seconds):
            sent = [pool.submit(run_load, url, requests, clients, each) for _ in range(senders)]
            loads = [one.result() for one in sent]
    return loads
