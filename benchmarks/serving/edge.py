"""Measures what HTTP costs a server whose device costs nothing: processor time of a request, and what a client waits.

    python benchmarks/serving/edge.py [--base NAME] [--clients 1 64] [--seconds 2] [--turns 6]

Tokenizing, the queue and the engine's thread are real; the device answers each sequence with the same two logits at
once. The clients have a process of their own, whose processor time is not counted. The table has the median of the
turns, and their least: the quietest moment of the machine.
"""

import asyncio
import math
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from multiprocessing import Pipe, get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np
import uvicorn

from onebert_bench.load import Load, run_load
from onebert_bench.machine import conditions, cpu_seconds
from onebert_bench.report import markdown_table
from onebert_bench.script import options
from onebert_bench.servers import TEXTS, apart, bitfit_files, push_tasks, requests_for
from onebert_bench.timing import in_turns
from onebert_bench.workload import sentences
from onebert_encoder.base.base import load_base
from onebert_server.engine.engine import Engine
from onebert_server.engine.host import HostCopy, Launched
from onebert_server.engine.memory import collect_seldom
from onebert_server.engine.request import Taken
from onebert_server.http.web import uvicorn_config
from onebert_server.run.app import create_app
from onebert_server.run.opening import open_runtime
from onebert_server.settings import load_settings

_LOGITS = np.tile(np.array([0.3, -0.2], np.float32), 2**14)


class Ready(HostCopy):
    """Logits that need not be copied."""

    def __init__(self, sequences: int) -> None:
        self._sequences = sequences

    def read(self) -> np.ndarray:
        """The logits of all sequences."""
        return _LOGITS[: 2 * self._sequences]


def launch(taken: Taken) -> None:
    """In place of `Engine.launch`: nothing is computed."""
    count = len(taken.slots)
    taken.started = time.monotonic()
    taken.launched = Launched(np.full(count, 2), np.zeros(count, np.int64), Ready(count), float(count))


class Server(NamedTuple):
    """A process that serves."""

    pid: int
    url: str


def serve(base: str | None, parent: Connection) -> None:
    """Serves until the parent ends the process; sends its URL, and once it hears back, that its device is free."""
    with TemporaryDirectory(prefix="onebert-edge-") as folder:
        settings = load_settings(data_dir=Path(folder), base=base, dtype="float32", threads=1)
        with open_runtime(settings) as runtime:
            config = uvicorn_config(create_app(runtime), settings.shutdown_timeout)
            # As `onebert serve` has it: uvicorn's event loop, and the garbage collector as it sets it.
            collect_seldom()
            with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
                runner.run(_listen(config, runtime.engine, parent))


async def _listen(config: uvicorn.Config, engine: Engine, parent: Connection) -> None:
    config.port = 0
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()
    parent.send(f"http://{host}:{port}")
    await asyncio.to_thread(parent.recv)
    engine.launch = launch
    parent.send(None)
    await serving


@contextmanager
def started(base: str | None) -> Iterator[Server]:
    """A server with the tasks of the load, whose device has become free."""
    ours, theirs = Pipe()
    process = get_context("spawn").Process(target=serve, args=(base, theirs))
    process.start()
    try:
        url = ours.recv()
        push_tasks(url, bitfit_files(load_base(base)))
        ours.send(None)
        ours.recv()
        yield Server(process.pid or 0, url)
    finally:
        process.terminate()
        process.join()


def load(server: Server, requests: list[bytes], clients: int, seconds: float, send: Callable[..., Load]) -> list[float]:
    """One turn: processor microseconds of a request, its median latency in ms, and how many came a second."""
    before = cpu_seconds(server.pid)
    load = send(server.url, requests, clients, seconds)
    used = cpu_seconds(server.pid) - before
    if load.refused:
        raise SystemExit(f"{load.refused} requests were refused")
    answered = len(load.latencies_ms) or math.nan  # a machine may be that busy
    return [used / answered * 1e6, load.latency_ms(0.5), load.rate]


def main() -> None:
    """Starts the server, loads it, and prints a table."""
    asked = options(__doc__, base=None, clients=[1, 64], seconds=2.0, turns=6)
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # the setting of the `onebert` command
    texts = sentences(load_base(asked.base), TEXTS)
    with started(asked.base) as server, apart(run_load) as send:
        requests = requests_for(server.url, texts)
        runs = {clients: partial(load, server, requests, clients, asked.seconds, send) for clients in asked.clients}
        loads = in_turns(runs, asked.turns)
    rows = [
        (clients, *(f"{median(each):.4g} ({min(each):.4g})" for each in zip(*turns, strict=True)))
        for clients, turns in loads.items()
    ]
    print(markdown_table(["clients", "processor, us a request", "p50, ms", "requests/s"], rows))
    print(conditions())


if __name__ == "__main__":
    main()
