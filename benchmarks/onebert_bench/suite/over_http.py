"""Measures over HTTP: each peer in turns with OneBERT, for one task and for many, with few clients and many."""

import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx

from onebert_bench.load import Load, Request, run_load
from onebert_bench.machine import family, memory_bytes, signal_all
from onebert_bench.report import Json
from onebert_bench.servers import TEXTS, Serving, loaded
from onebert_bench.suite.measure import TOLERANCE, Settings
from onebert_bench.suite.peers import PEERS, PeerFailed, python_of
from onebert_bench.suite.servers import OURS, PEER_SERVERS, Launch, Peer, free_port, running
from onebert_bench.suite.workload import MAX_LENGTH, Workload
from onebert_bench.timing import in_turns

TASKS = 64
TRAFFIC = [(tasks, clients) for tasks in (1, TASKS) for clients in (1, 64)]
DTYPE = "float32"
_SECONDS = {1: 1.0, 64: 2.0}
_MOST_REPETITIONS = 3  # each takes seconds


@dataclass
class HttpOutcome:
    """OneBERT and one peer under the same load, in turns.

    Attributes:
        tasks: number of tasks that the requests are for; both servers hold `TASKS`.
        ours, theirs: one load for each repetition.
        error: largest difference between a probability of the peer and OneBERT's.
        memory: bytes of the peer's processes after the load.
        failed: the reason if the peer failed.
    """

    peer: str
    tasks: int
    clients: int
    ours: list[Load] = field(default_factory=list)
    theirs: list[Load] = field(default_factory=list)
    error: float | None = None
    memory: int = 0
    failed: str | None = None

    @property
    def wrong(self) -> bool:
        """Whether the peer's probabilities differ from OneBERT's by more than the tolerance."""
        return self.error is not None and not self.error <= TOLERANCE[DTYPE]

    def as_json(self) -> Json:
        """The outcome as JSON values, for the results file."""
        loads = {side: [load.as_json() for load in getattr(self, side)] for side in ("ours", "theirs")}
        return {"title": PEER_SERVERS[self.peer].title, "dtype": DTYPE, **vars(self), **loads}


def measure_peers(settings: Settings, workload: Workload) -> list[HttpOutcome]:
    """Measures every peer beside OneBERT; a peer that does not start has an outcome, too."""
    texts = [str(text) for text in workload.texts("sst2", TEXTS)]
    files = (file.read_bytes() for file in workload.files("BitFit", TASKS))
    serving = Serving(str(workload.folder), DTYPE, threads=settings.threads)
    outcomes = []
    with loaded(files, None, **vars(serving)) as server:
        for name in PEER_SERVERS:
            try:
                outcomes += _measure_peer(name, settings, workload, texts, server.url)
            # OSError: the peer closed a connection or died.
            except (PeerFailed, OSError) as failure:
                outcomes += [HttpOutcome(name, *traffic, failed=str(failure)) for traffic in TRAFFIC]
    return outcomes


def _measure_peer(
    name: str, settings: Settings, workload: Workload, texts: Sequence[str], ours: str
) -> list[HttpOutcome]:
    peer = PEER_SERVERS[name]
    python = python_of(peer.environment, settings.cache / "environments")
    models = merged_models(settings, workload)
    launch = Launch(python, models, free_port(), settings.threads, DTYPE, TASKS)
    with running(peer, launch, settings.cache / "logs" / f"http-{name}.txt") as (url, pid):
        sides = {"ours": (ours, OURS), "theirs": (url, peer)}

        def load(side: str, tasks: int, clients: int) -> Load:
            at, asked = sides[side]
            turns = ((f"task-{turn % tasks}", texts[turn * 7 % len(texts)]) for turn in range(len(texts)))
            requests = [asked.request(task, text).encode(at) for task, text in turns]
            with _stopped(pid) if side == "ours" else nullcontext():
                return run_load(at, requests, clients, _SECONDS[clients])

        error = _difference(sides, texts)
        runs = {(side, *traffic): partial(load, side, *traffic) for traffic in TRAFFIC for side in sides}
        loads = in_turns(runs, min(settings.repetitions, _MOST_REPETITIONS))
        memory = memory_bytes(pid)
    return [
        HttpOutcome(name, *traffic, loads["ours", *traffic], loads["theirs", *traffic], error, memory)
        for traffic in TRAFFIC
    ]


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    members = family(pid)
    signal_all(members, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_all(members, signal.SIGCONT)


def _difference(sides: Mapping[str, tuple[str, Peer]], texts: Sequence[str]) -> float:
    """The largest difference of a probability, over one text for each task.

    The requests also make servers load all tasks that they load on first use.
    """
    worst = 0.0
    for number in range(TASKS):
        asked = {name: (at, peer.request(f"task-{number}", texts[number])) for name, (at, peer) in sides.items()}
        scores = {name: sides[name][1].read(_post(*request)) for name, request in asked.items()}
        ours, theirs = scores["ours"], scores["theirs"]
        if theirs.keys() != ours.keys():
            raise PeerFailed(f"its labels are {', '.join(theirs)}")
        worst = max(worst, *(abs(theirs[label] - ours[label]) for label in ours))
    return worst


def _post(url: str, request: Request) -> Any:
    try:
        answer = httpx.post(url + request.path, content=request.body, headers=dict(request.headers), timeout=120)
        return answer.raise_for_status().json()
    except httpx.HTTPError as error:
        raise PeerFailed(str(error).splitlines()[0]) from None


def merged_models(settings: Settings, workload: Workload) -> Path:
    """A folder with a whole model for each task, written once.

    Raises:
        PeerFailed: the models could not be written.
    """
    files = workload.files("BitFit", TASKS)
    folder = settings.cache / "work" / f"models-{files[0].stem}"
    if not (folder / f"task-{TASKS - 1}").is_dir():
        python = python_of("torch", settings.cache / "environments")
        command = [python, PEERS / "write_models.py", workload.folder, folder, MAX_LENGTH, *files]
        done = subprocess.run([str(part) for part in command], capture_output=True, text=True, check=False)
        if done.returncode:
            raise PeerFailed((done.stderr.strip().splitlines() or ["the models could not be written"])[-1])
    return folder
