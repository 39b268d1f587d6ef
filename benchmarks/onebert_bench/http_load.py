"""Through HTTP: single-text requests for 64 tasks from closed-loop clients, against a real server process.

The load comes from a process of its own, and the engine alone answers the same texts in a third one, in turns with the
server, so that their ratio is of one run. On few cores the clients take their share of them: `client_us` a request.
"""

import json
import multiprocessing
import tempfile
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from onebert_bench.engine_load import TASKS, TEXTS, run_engine
from onebert_bench.load import Load, Request, run_load
from onebert_bench.ranks import percentile
from onebert_bench.workload import bitfit_delta, sentences, tokenized
from onebert_encoder.base import Base, load_base
from onebert_server.client import Client
from onebert_server.process import serving
from onebert_store.format import dumps

_TURNS = 4


def measure_http(
    name: str | None, dtype: str, device: str, clients: tuple[int, ...], seconds: float
) -> dict[str, dict[str, float]]:
    """What `_summary` says, for each number of clients; server and engine get `seconds` each."""
    base = load_base(name)
    texts = sentences(base, TEXTS)
    mean_tokens = sum(map(len, tokenized(base, texts))) / len(texts)
    fresh = multiprocessing.get_context("spawn")
    with (
        tempfile.TemporaryDirectory(prefix="onebert-bench-") as folder,
        serving(Path(folder), base=name, dtype=dtype, device=device) as server,
        ProcessPoolExecutor(1, fresh) as sender,
        ProcessPoolExecutor(1, fresh) as alone,
    ):
        push_tasks(server.url, base)
        requests = requests_of(server.url, texts)
        loads: dict[int, list[tuple[Load, Load]]] = {count: [] for count in clients}
        # The first turn is for warming up.
        for turn in range(_TURNS + 1):
            for count in clients:
                http = sender.submit(run_load, server.url, requests, count, seconds / _TURNS).result()
                engine = alone.submit(run_engine, name, dtype, device, count, seconds / _TURNS).result()
                loads[count] += [(http, engine)] if turn else []
        return {str(count): _summary(turns, mean_tokens) for count, turns in loads.items()}


def push_tasks(url: str, base: Base) -> None:
    """Uploads the tasks of the load."""
    with Client(url) as client:
        for seed in range(TASKS):
            client.push(f"task-{seed}", dumps(bitfit_delta(base, seed)))


def requests_of(url: str, texts: Sequence[str]) -> list[bytes]:
    """Those of `run_engine`, in its order."""
    bodies = [json.dumps({"inputs": text}) for text in texts]
    return [
        Request(f"/v1/tasks/task-{turn % TASKS}/classify", bodies[turn * 7 % TEXTS]).encode(url)
        for turn in range(TEXTS)
    ]


def mixed_requests_of(url: str, texts: Sequence[str], size: int) -> list[bytes]:
    """Requests of so many texts, each for another task."""
    items = [{"task": f"task-{place % TASKS}", "text": text} for place, text in enumerate(texts)]
    bodies = [json.dumps({"items": items[start : start + size]}) for start in range(0, TEXTS, size)]
    return [Request("/v1/classify", body).encode(url) for body in bodies]


def _summary(turns: Sequence[tuple[Load, Load]], mean_tokens: float) -> dict[str, float]:
    """Rates are over all turns, percentiles over all requests; `engine_…` is the engine alone."""
    http, engine = ([turn[side] for turn in turns] for side in (0, 1))
    latencies = [value for load in http for value in load.latencies_ms]
    rate = len(latencies) / sum(load.seconds for load in http)
    engine_latencies = [value for load in engine for value in load.latencies_ms]
    engine_rate = len(engine_latencies) / sum(load.seconds for load in engine)
    return {
        "refused": float(sum(load.refused for load in http)),
        "requests_per_second": rate,
        "tokens_per_second": rate * mean_tokens,
        "p50_ms": percentile(latencies, 0.5),
        "p99_ms": percentile(latencies, 0.99),
        "client_us": sum(load.cpu_seconds for load in http) / len(latencies) * 1e6,
        "engine_requests_per_second": engine_rate,
        "engine_p50_ms": percentile(engine_latencies, 0.5),
        "share_of_engine": rate / engine_rate,
    }
