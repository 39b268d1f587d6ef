"""The servers that are measured over HTTP: how each is started, asked and read."""

import json
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from onebert_bench.load import Request
from onebert_bench.machine import family, signal_all
from onebert_bench.suite.peers import PEERS, PeerFailed
from onebert_bench.suite.workers import environment

_START_S = 300.0
Scores = dict[str, float]


class Launch(NamedTuple):
    """The arguments of a server's start: the interpreter, and a folder with a merged model for each task."""

    python: Path
    models: Path
    port: int
    threads: int
    dtype: str
    tasks: int


@dataclass(frozen=True)
class Peer:
    """One kind of server.

    Attributes:
        title: its name in tables and pictures.
        environment: name in `ENVIRONMENTS`.
        command: makes the command that starts it.
        request: makes a request of a task and a text.
        read: reads the labels' scores from an answer.
    """

    title: str
    environment: str
    command: Callable[[Launch], Sequence[object]]
    request: Callable[[str, str], Request]
    read: Callable[[Any], Scores]


def _script(name: str) -> Callable[[Launch], Sequence[object]]:
    def command(at: Launch) -> Sequence[object]:
        return (at.python, PEERS / name, *at[1:])

    return command


def _infinity(at: Launch) -> Sequence[object]:
    each = [f"task-{task}" for task in range(at.tasks)]
    named = [part for name in each for part in ("--model-id", at.models / name, "--served-model-name", name)]
    # No warm-up of its own, which takes seconds for each model; the load has one.
    compute = ("--engine", "torch", "--device", "cpu", "--dtype", at.dtype, "--batch-size", 64, "--no-model-warmup")
    listen = ("--host", "127.0.0.1", "--port", at.port, "--log-level", "warning")
    return (at.python.with_name("infinity_emb"), "v2", *named, *compute, *listen)


def _pairs(answer: Sequence[Mapping[str, Any]]) -> Scores:
    return {pair["label"]: pair["score"] for pair in answer}


PEER_SERVERS: Mapping[str, Peer] = {
    "fastapi": Peer(
        "FastAPI and transformers pipelines",
        "torch",
        _script("http_pipeline.py"),
        lambda task, text: Request(f"/classify/{task}", json.dumps({"inputs": text})),
        _pairs,
    ),
    "infinity": Peer(
        "Infinity",
        "infinity",
        _infinity,
        lambda task, text: Request("/classify", json.dumps({"model": task, "input": [text]})),
        lambda answer: _pairs(answer["data"][0]),
    ),
}


OURS = Peer(
    "OneBERT",
    "ours",
    lambda _: (),
    lambda task, text: Request(f"/v1/tasks/{task}/classify", json.dumps({"inputs": text})),
    lambda answer: answer["results"][0]["scores"],
)


@contextmanager
def running(peer: Peer, launch: Launch, log: Path) -> Iterator[tuple[str, int]]:
    """Runs a server; gives its address and process id once it answers for its first task, and ends it afterwards.

    Raises:
        PeerFailed: the server did not start; the message is the last line that it wrote.
    """
    command = [str(part) for part in peer.command(launch)]
    with log.open("wb") as out:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            env=environment(launch.threads),
            process_group=0,
        )
    url = f"http://127.0.0.1:{launch.port}"
    try:
        _await_answer(process, url, peer.request("task-0", "is it there?"), log)
        yield url, process.pid
    finally:
        _end(process)


def _await_answer(process: subprocess.Popen[bytes], url: str, request: Request, log: Path) -> None:
    until = time.monotonic() + _START_S
    while time.monotonic() < until and process.poll() is None:
        with suppress(httpx.HTTPError):
            if httpx.post(url + request.path, content=request.body, headers=request.headers, timeout=60).is_success:
                return
        time.sleep(0.5)
    if process.poll() is None:
        raise PeerFailed(f"it did not answer within {_START_S:.0f} s of its start")
    lines = [line for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    raise PeerFailed(lines[-1].strip() if lines else "it did not start and said nothing")


def _end(process: subprocess.Popen[bytes]) -> None:
    """Asks the process to end, then kills whatever is left of it and its children."""
    members = family(process.pid)
    signal_all(members, signal.SIGCONT)
    process.terminate()
    with suppress(subprocess.TimeoutExpired):
        process.wait(20)
    signal_all(members, signal.SIGKILL)
    process.wait()


def free_port() -> int:
    """A port of the loopback interface that is free now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port
