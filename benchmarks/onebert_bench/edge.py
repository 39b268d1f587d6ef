"""Processor time that one process with its engine takes for a request, beside a bare uvicorn application's.

The base has two tiny layers, so that the device costs nothing. Processor time, not wall time: other programs disturb it
less.
"""

import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from onebert_bench.load import Load, run_load
from onebert_bench.machine import cpu_seconds
from onebert_bench.servers import TEXTS, Serving, apart, bitfit_files, loaded, requests_for
from onebert_bench.workload import TINY, base_folder, sentences
from onebert_encoder.base.base import load_base

# Seconds of a load that is not measured, before each measured one.
_WARM_UP = 0.5


@contextmanager
def edge_beside_bare() -> Iterator[Callable[[int, float], float]]:
    """Measures, for a number of clients and seconds, how many times a bare application's processor time ours takes."""
    with tempfile.TemporaryDirectory(prefix="onebert-bench-") as folder:
        name = str(base_folder(TINY, Path(folder)))
        base = load_base(name)
        texts, serving = sentences(base, TEXTS), Serving(name, "float32", threads=1)
        with (
            loaded(bitfit_files(base), **vars(serving), front_ends=0) as server,
            _bare() as bare,
            apart(run_load) as send,
        ):

            def times(clients: int, seconds: float) -> float:
                ours, theirs = (
                    _cost(send, *address, texts, clients, seconds) for address in ((server.url, server.pid), bare)
                )
                return ours / theirs

            yield times


def _cost(send: Callable[..., Load], url: str, pid: int, texts: Sequence[str], clients: int, seconds: float) -> float:
    """Processor time of a request with one text, in seconds."""
    requests = requests_for(url, texts)
    send(url, requests, clients, _WARM_UP)
    before = cpu_seconds(pid)
    load = send(url, requests, clients, seconds)
    return (cpu_seconds(pid) - before) / len(load.latencies_ms)


@contextmanager
def _bare() -> Iterator[tuple[str, int]]:
    """A bare application's address and process id."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        command = [sys.executable, "-m", "onebert_bench.bare_app", str(listener.fileno())]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()])
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}", process.pid
        finally:
            process.terminate()
            process.wait()
