"""Measures what HTTP costs a server whose device costs nothing: processor time of a request, and what a client waits.

    python benchmarks/serving/edge.py [--base NAME] [--clients 1 64] [--seconds 2] [--turns 6] [--before PYTHON]

Tokenizing, the queue and the engine's thread are real; the device answers each sequence with the same two logits at
once. The clients have a process of their own, whose processor time is not counted. With `--before`, the interpreter of
an environment that has another revision installed, a server of that revision takes turns with this one's. The table has
the median of the turns, and their least: the quietest moment of the machine.
"""

import argparse
import asyncio
import math
import multiprocessing
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory

import numpy as np
import torch
import uvicorn

from onebert_bench.engine_load import TEXTS
from onebert_bench.http_load import push_tasks, requests_for
from onebert_bench.load import run_load
from onebert_bench.pages import markdown_table
from onebert_bench.workload import sentences
from onebert_encoder.base.base import load_base
from onebert_server.app import create_app
from onebert_server.engine.engine import Engine
from onebert_server.engine.host_copy import HostCopy
from onebert_server.engine.request import Flight, Launched, Waiting
from onebert_server.garbage import collect_seldom
from onebert_server.http.web import uvicorn_config
from onebert_server.runtime import open_runtime
from onebert_server.settings import Settings

_LOGITS = np.tile(np.array([0.3, -0.2], np.float32), 2**14)
_SHAPE = torch.Size([2])


class Ready(HostCopy):
    """Logits that need not be copied."""

    def __init__(self, sequences: int) -> None:
        self._sequences = sequences

    def read(self) -> np.ndarray:
        """The logits of all sequences."""
        return _LOGITS[: 2 * self._sequences]


def launch(waiting: Sequence[Waiting]) -> Flight:
    """In place of `Engine.launch`: nothing is computed."""
    launched = Launched([_SHAPE] * len(waiting), Ready(len(waiting)), float(len(waiting)))
    return Flight(waiting, launched, time.monotonic())


@dataclass(frozen=True)
class Server:
    """A process that serves."""

    pid: int
    url: str

    def cpu_seconds(self) -> float:
        """Processor time that it has taken."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def serve(base: str | None) -> None:
    """Serves until its input ends; writes its URL, and once it has read a line, that its device is free."""
    with TemporaryDirectory(prefix="onebert-edge-") as folder:
        settings = Settings.model_construct(data_dir=Path(folder), base=base, dtype="float32", threads=1)
        with open_runtime(settings) as runtime:
            config = uvicorn_config(create_app(runtime), 60.0, 5.0)
            # As `onebert serve` has it: uvicorn's event loop, and the garbage collector as it sets it.
            collect_seldom()
            with asyncio.Runner(loop_factory=config.get_loop_factory()) as runner:
                runner.run(_listen(config, runtime.engine))


async def _listen(config: uvicorn.Config, engine: Engine) -> None:
    config.port = 0
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    host, port = server.servers[0].sockets[0].getsockname()
    print(f"http://{host}:{port}", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    engine.launch = launch
    print("free", flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    server.should_exit = True
    await serving


@contextmanager
def started(base: str | None, python: str) -> Iterator[Server]:
    """A server of an environment, with the tasks of the load, whose device has become free."""
    command = [python, __file__, "--serve", *(["--base", base] if base else [])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        pipes = process.stdin, process.stdout
        if None in pipes:
            raise RuntimeError("the server has no pipes")
        url = process.stdout.readline().strip()
        push_tasks(url, load_base(base))
        process.stdin.write("\n")
        process.stdin.flush()
        process.stdout.readline()
        yield Server(process.pid, url)
        process.stdin.close()


def load(server: Server, texts: Sequence[str], clients: int, seconds: float, sender: Executor) -> dict[str, float]:
    """One turn: processor microseconds of a request, its median latency in ms, and how many came a second."""
    before = server.cpu_seconds()
    requests = requests_for(server.url, texts, 1)
    found = sender.submit(run_load, server.url, requests, clients, seconds).result()
    used = server.cpu_seconds() - before
    if found.refused:
        raise SystemExit(f"{found.refused} requests were refused")
    answered = len(found.latencies_ms) or math.nan  # a machine may be that busy
    return {"cpu": used / answered * 1e6, "p50": found.latency_ms(0.5), "rate": found.rate}


def main() -> None:
    """Starts the servers, loads them in turns, and prints a table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--base")
    parser.add_argument("--clients", type=int, nargs="+", default=[1, 64])
    parser.add_argument("--seconds", type=float, default=2.0)
    parser.add_argument("--turns", type=int, default=6)
    parser.add_argument("--before", metavar="PYTHON")
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    asked = parser.parse_args()
    os.environ.setdefault("GOMP_SPINCOUNT", "2000")  # the setting of the `onebert` command
    if asked.serve:
        serve(asked.base)
        return
    revisions = {"this": sys.executable} | ({"before": asked.before} if asked.before else {})
    texts = sentences(load_base(asked.base), TEXTS)
    found = defaultdict(list)
    with ExitStack() as stack:
        servers = {name: stack.enter_context(started(asked.base, python)) for name, python in revisions.items()}
        sender = stack.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        for turn in range(asked.turns + 1):
            for clients in asked.clients:
                for name, server in servers.items():
                    one = load(server, texts, clients, asked.seconds, sender)
                    found[clients, name] += [one] if turn else []
    rows = [
        (clients, name, *(f"{median(each):.4g} ({min(each):.4g})" for each in columns(turns)))
        for (clients, name), turns in found.items()
    ]
    print(markdown_table(["clients", "revision", "processor, us a request", "p50, ms", "requests/s"], rows))
    print(f"load average {os.getloadavg()[0]:.1f}")


def columns(turns: Sequence[dict[str, float]]) -> Iterator[list[float]]:
    """What the turns found, by kind."""
    for kind in ("cpu", "p50", "rate"):
        yield [turn[kind] for turn in turns]


if __name__ == "__main__":
    main()
