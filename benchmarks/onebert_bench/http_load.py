"""Measures real server processes over HTTP: requests for 64 tasks from closed-loop clients.

The load comes from a second process. In a third one the engine alone answers the same texts, in turns with the servers,
so that the ratio of their rates comes from one run. On few cores the clients slow the server: they take `client_us` of
processor time for each request.
"""

import json
import multiprocessing
import os
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from onebert_bench.engine_load import TASKS, TEXTS, run_engine
from onebert_bench.load import Load, Request, run_load
from onebert_bench.processes import memory_bytes
from onebert_bench.ranks import percentile
from onebert_bench.workload import bitfit_delta, sentences, tokenized
from onebert_encoder.base.base import Base, load_base
from onebert_server.client import Client
from onebert_server.process import ChildServer, serving
from onebert_store.file.format import dumps

_TURNS = 4


@dataclass(frozen=True)
class Traffic:
    """Closed-loop clients.

    Attributes:
        texts: number of texts in a request, each for another task.
    """

    clients: int
    texts: int = 1


@dataclass(frozen=True)
class Serving:
    """The base and the settings of all servers.

    Attributes:
        base: Hub id or folder; None is the default base.
        threads: threads of the server and of the engine alone; None is PyTorch's default.
    """

    base: str | None
    dtype: str
    device: str = "cpu"
    threads: int | None = None


Key = tuple[Traffic, int | None]
"""Clients, and the number of front ends; None is the engine alone, which gets only single texts."""


@dataclass(frozen=True)
class Served:
    """The measurements.

    Attributes:
        loads: the loads of every turn but the first.
        memory: bytes of a server's processes after the load, by its number of front ends.
    """

    loads: dict[Key, list[Load]]
    memory: dict[int, int]


def measure_http(
    name: str | None, dtype: str, device: str, clients: tuple[int, ...], seconds: float
) -> dict[str, dict[str, float]]:
    """For each number of clients the result of `_summary`; server and engine are loaded for `seconds` each."""
    base = load_base(name)
    texts = sentences(base, TEXTS)
    mean_tokens = sum(map(len, tokenized(base, texts))) / len(texts)
    traffic = [Traffic(count) for count in clients]
    served = measure_served(Serving(name, dtype, device), base, (0,), traffic, _TURNS, seconds / _TURNS)
    return {str(one.clients): _summary(served.loads[one, 0], served.loads[one, None], mean_tokens) for one in traffic}


def measure_served(
    what: Serving, base: Base, layouts: Sequence[int], traffic: Sequence[Traffic], turns: int, seconds: float
) -> Served:
    """Measures servers with the same tasks, which take turns with each other and with the engine alone.

    Args:
        what: base and settings of all servers.
        base: the same base, for texts and tasks.
        layouts: numbers of front ends, one for each server.
        traffic: kinds of load; each server gets each of them once a turn.
        turns: number of turns that count; one more comes first as warm-up.
        seconds: duration of each load.
    """
    texts = sentences(base, TEXTS)
    found: defaultdict[Key, list[Load]] = defaultdict(list)
    fresh = multiprocessing.get_context("spawn")
    with (
        _as_served(),
        _servers(what, base, layouts) as servers,
        ProcessPoolExecutor(1, fresh) as sender,
        ProcessPoolExecutor(1, fresh) as alone,
    ):
        for turn in range(turns + 1):
            for one in traffic:
                done: dict[int | None, Load] = {}
                for count, server in servers.items():
                    requests = requests_for(server.url, texts, one.texts)
                    done[count] = sender.submit(run_load, server.url, requests, one.clients, seconds).result()
                if one.texts == 1:
                    engine = alone.submit(
                        run_engine, what.base, what.dtype, what.device, what.threads, one.clients, seconds
                    )
                    done[None] = engine.result()
                for layout, load in done.items():
                    found[one, layout] += [load] if turn else []
        memory = {count: memory_bytes(server.pid) for count, server in servers.items()}
    return Served(dict(found), memory)


@contextmanager
def _as_served() -> Iterator[None]:
    """Inside, child processes get the environment that `onebert` sets (decision 6), for the engine alone."""
    before = os.environ.copy()
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


@contextmanager
def _servers(what: Serving, base: Base, layouts: Sequence[int]) -> Iterator[dict[int, ChildServer]]:
    """Servers with the given numbers of front ends and the tasks of the load."""
    with ExitStack() as stack:
        servers = {}
        for count in layouts:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="onebert-bench-")))
            servers[count] = stack.enter_context(serving(folder, **vars(what), front_ends=count))
            push_tasks(servers[count].url, base)
        yield servers


def push_tasks(url: str, base: Base, api_key: str | None = None) -> None:
    """Uploads the tasks of the load."""
    with Client(url, api_key) as client:
        for seed in range(TASKS):
            client.push(f"task-{seed}", dumps(bitfit_delta(base, seed)))


def requests_for(url: str, texts: Sequence[str], each: int) -> list[bytes]:
    """Encoded requests: the single texts of `run_engine` in its order, or requests of `each` texts for many tasks."""
    if each == 1:
        paths = [f"/v1/tasks/task-{turn % TASKS}/classify" for turn in range(TEXTS)]
        bodies = [json.dumps({"inputs": texts[turn * 7 % TEXTS]}) for turn in range(TEXTS)]
        return [Request(path, body).encode(url) for path, body in zip(paths, bodies, strict=True)]
    items = [{"task": f"task-{place % TASKS}", "text": text} for place, text in enumerate(texts)]
    bodies = [json.dumps({"items": items[start : start + each]}) for start in range(0, TEXTS, each)]
    return [Request("/v1/classify", body).encode(url) for body in bodies]


def _summary(http: Sequence[Load], engine: Sequence[Load], mean_tokens: float) -> dict[str, float]:
    """Rates over all turns and percentiles over all requests; `engine_…` is the engine alone."""
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
