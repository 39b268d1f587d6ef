"""Real server processes under load: requests for 64 tasks, in turns with each other and with the engine alone.

The load comes from a second process. In a third one the engine alone answers the same texts, as many at a time but
tokenized already, so that the ratio of their rates comes from one run. On few cores the clients slow the server: they
take `client_us` of processor time for each request.
"""

import json
import math
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

import numpy as np
import torch

from onebert_bench.load import Load, Request, run_load
from onebert_bench.machine import memory_bytes, process
from onebert_bench.numbers import percentile
from onebert_bench.timing import in_turns
from onebert_bench.workload import bank_of, sentences, task_delta, tokenized
from onebert_encoder.base.base import Base, load_base
from onebert_encoder.maths.sequences import Sequences
from onebert_encoder.text.tokens import Tokens
from onebert_server.access.principal import root
from onebert_server.client import Client
from onebert_server.engine.block import REQUEST, SEQUENCE, Block, Ended
from onebert_server.engine.engine import Engine
from onebert_server.engine.host import Host
from onebert_server.engine.memory import keep_freed_memory
from onebert_server.run.opening import engine_limits
from onebert_server.run.serving import ChildServer, serving
from onebert_server.settings import Settings
from onebert_store.file.format import dumps

TASKS = 64
TEXTS = 256
_TURNS = 4
# PyTorch's default; read before the thread that sends is told to compute with one.
_ALL_THREADS = torch.get_num_threads()


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


@dataclass(frozen=True)
class Served:
    """The measurements.

    Attributes:
        loads: of clients and the number of front ends, the loads of every turn but the first. None front ends are the
            engine alone, which gets only single texts.
        memory: bytes of a server's processes after the load, by its number of front ends.
    """

    loads: dict[tuple[Traffic, int | None], list[Load]]
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
    return {
        str(kind.clients): _summary(served.loads[kind, 0], served.loads[kind, None], mean_tokens) for kind in traffic
    }


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
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # as `onebert` sets it, for the engine alone
    with ExitStack() as stack:
        servers = {
            count: stack.enter_context(loaded(bitfit_files(base), **vars(what), front_ends=count)) for count in layouts
        }
        alone = stack.enter_context(apart(_run_engine))
        send = stack.enter_context(apart(run_load))
        runs: dict[tuple[Traffic, int | None], Callable[[], Load]] = {}
        for kind in traffic:
            for count, server in servers.items():
                requests = requests_for(server.url, texts, kind.texts)
                runs[kind, count] = partial(send, server.url, requests, kind.clients, seconds)
            if kind.texts == 1:
                runs[kind, None] = partial(alone, what, kind.clients, seconds)
        loads = in_turns(runs, turns)
        memory = {count: memory_bytes(server.pid) for count, server in servers.items()}
    return Served(loads, memory)


@contextmanager
def loaded(files: Iterable[bytes], /, api_key: str | None = None, **settings: object) -> Iterator[ChildServer]:
    """A server with the tasks of the load, `task-0` and so on, and a folder of its own."""
    with (
        tempfile.TemporaryDirectory(prefix="onebert-bench-") as folder,
        serving(Path(folder), **settings) as server,
    ):
        push_tasks(server.url, files, api_key)
        yield server


@contextmanager
def several(count: int) -> Iterator[Callable[..., Load]]:
    """`run_load` in so many processes at once, which share the clients, since one of them sends only so fast."""
    with ExitStack() as stack:
        processes = [stack.enter_context(process()) for _ in range(count)]

        def send(url: str, requests: Sequence[bytes], clients: int, seconds: float) -> Load:
            shares = [(clients + number) // count for number in range(count)]
            sending = [
                sender.submit(run_load, url, [*requests[number:], *requests[:number]], share, seconds)
                for number, (sender, share) in enumerate(zip(processes, shares, strict=True))
                if share
            ]
            loads = [load.result() for load in sending]
            latencies = [value for load in loads for value in load.latencies_ms]
            refused, cpu = sum(load.refused for load in loads), sum(load.cpu_seconds for load in loads)
            return Load(latencies, refused, max(load.seconds for load in loads), cpu)

        yield send


@contextmanager
def apart(run: Callable[..., Load]) -> Iterator[Callable[..., Load]]:
    """The same function, but it runs in a process of its own."""
    with process() as sender:
        yield lambda *load: sender.submit(run, *load).result()


def push_tasks(url: str, files: Iterable[bytes], api_key: str | None = None) -> None:
    """Uploads the tasks of the load."""
    with Client(url, api_key) as client:
        for number, file in enumerate(files):
            client.push(f"task-{number}", file)


def bitfit_files(base: Base) -> Iterator[bytes]:
    """The tasks of the load, as files."""
    return (dumps(task_delta(base, "bitfit", seed)) for seed in range(TASKS))


def requests_for(
    url: str, texts: Sequence[str], each: int = 1, headers: Mapping[str, str] | None = None
) -> list[bytes]:
    """Encoded requests: single texts in the order of the engine alone, or requests of `each` texts for many tasks."""
    asked: list[tuple[str, dict[str, object]]]
    if each == 1:
        texts = [texts[turn * 7 % TEXTS] for turn in range(TEXTS)]
        asked = [(f"/v1/tasks/task-{turn % TASKS}/classify", {"inputs": text}) for turn, text in enumerate(texts)]
    else:
        items = [{"task": f"task-{place % TASKS}", "text": text} for place, text in enumerate(texts)]
        asked = [("/v1/classify", {"items": items[start : start + each]}) for start in range(0, TEXTS, each)]
    return [Request(path, json.dumps(body), headers or {}).encode(url) for path, body in asked]


def _run_engine(what: Serving, clients: int, seconds: float) -> Load:
    """A closed loop like `run_load` on the engine alone, which is set up like `onebert serve`."""
    engine, slots, inputs = _engine(what)
    [host] = engine.hosts.values()
    latencies: list[float] = []
    ids = [Sequences.of([tokens]).ids for tokens in inputs]
    turns, sent = [number * 7 for number in range(clients)], [0.0] * clients
    started, cpu, left, done = time.perf_counter(), time.process_time(), clients, threading.Event()

    def send(numbers: Sequence[int]) -> None:
        chosen = [ids[turns[number] * 7 % TEXTS] for number in numbers]
        requests, sequences = np.zeros(len(numbers), REQUEST), np.zeros(len(numbers), SEQUENCE)
        requests["number"], requests["sequences"], requests["deadline"] = numbers, 1, math.inf
        requests["submitted"] = time.monotonic()
        sequences["slot"] = [slots[turns[number] % TASKS] for number in numbers]
        sequences["generation"], sequences["tokens"] = host.bank.generation[sequences["slot"]], [*map(len, chosen)]
        for number in numbers:
            sent[number] = time.perf_counter()
        lane.submit(Block([root("load")], requests, sequences, np.concatenate(chosen)))

    def answered(ended: Ended) -> None:
        nonlocal left
        now, numbers = time.perf_counter(), ended.requests["number"].tolist()
        latencies.extend((now - sent[number]) * 1e3 for number in numbers)
        for number in numbers:
            turns[number] += 1
        if now < started + seconds:
            send(numbers)
        else:
            left -= len(numbers)
            if not left:
                done.set()

    lane = engine.lane(answered)
    send(range(clients))
    done.wait()
    return Load(latencies, 0, time.perf_counter() - started, time.process_time() - cpu)


@cache
def _engine(what: Serving) -> tuple[Engine, list[int], list[Tokens]]:
    keep_freed_memory()
    torch.set_num_threads(1)
    base = load_base(what.base, dtype=getattr(torch, what.dtype), device=what.device)
    bank, slots = bank_of(base, "bitfit", TASKS)
    settings = Settings.model_construct()  # the defaults, whatever the environment says
    engine = Engine([Host(base, bank)], engine_limits(settings), threads=what.threads or _ALL_THREADS)
    engine.start()
    return engine, slots, tokenized(base, sentences(base, TEXTS))


def _summary(http: Sequence[Load], engine: Sequence[Load], mean_tokens: float) -> dict[str, float]:
    """Rates over all turns and percentiles over all requests; `engine_…` is the engine alone."""
    (latencies, rate), (engine_latencies, engine_rate) = map(_over_all, (http, engine))
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


def _over_all(loads: Sequence[Load]) -> tuple[list[float], float]:
    latencies = [value for load in loads for value in load.latencies_ms]
    return latencies, len(latencies) / sum(load.seconds for load in loads)
