"""Measures over HTTP: each peer in turns with OneBERT, for one task and for many, with few clients and many."""

import signal
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

from onebert_bench.load import Load, Request, run_load
from onebert_bench.processes import family, memory_bytes, signal_all
from onebert_bench.suite.measure import TOLERANCE, Settings
from onebert_bench.suite.peers.entries import PEERS
from onebert_bench.suite.peers.environments import python_of
from onebert_bench.suite.peers.errors import PeerFailed
from onebert_bench.suite.peers.servers import PEER_SERVERS, Launch, Peer, Scores, free_port, ours, read_ours, running
from onebert_bench.suite.peers.workers import Json
from onebert_bench.suite.texts import MAX_LENGTH
from onebert_bench.suite.workload import Workload
from onebert_server.client import Client
from onebert_server.process import serving

TASKS = 64
CLIENTS = (1, 64)
DTYPE = "float32"
_TEXTS = 256
_SECONDS = {1: 1.0, 64: 2.0}
_WARM_UP_S = 1.0
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


def measure_peers(
    settings: Settings, workload: Workload, peers: Sequence[str] = tuple(PEER_SERVERS)
) -> list[HttpOutcome]:
    """Measures every peer beside OneBERT; a peer that does not start has an outcome, too."""
    texts = [str(text) for text in workload.texts("sst2", _TEXTS)]
    outcomes = []
    with _own_server(settings, workload) as own:
        for name in peers:
            mine = [HttpOutcome(name, tasks, clients) for tasks in (1, TASKS) for clients in CLIENTS]
            try:
                _measure_peer(mine, settings, workload, texts, own)
            # OSError: the peer closed a connection or died.
            except (PeerFailed, OSError) as failure:
                for outcome in mine:
                    outcome.failed = str(failure)
            outcomes += mine
    return outcomes


@contextmanager
def _own_server(settings: Settings, workload: Workload) -> Iterator[str]:
    """Runs `onebert serve` with all tasks; gives its address."""
    with (
        tempfile.TemporaryDirectory(prefix="onebert-bench-") as folder,
        serving(
            Path(folder), base=workload.folder, dtype=DTYPE, device=settings.device, threads=settings.threads
        ) as server,
    ):
        with Client(server.url) as client:
            for task, file in enumerate(workload.files("BitFit", TASKS)):
                client.push(f"task-{task}", file.read_bytes())
        yield server.url


def _measure_peer(
    outcomes: Sequence[HttpOutcome], settings: Settings, workload: Workload, texts: Sequence[str], own: str
) -> None:
    peer = PEER_SERVERS[outcomes[0].peer]
    python = python_of(peer.environment, settings.cache / "environments")
    models = merged_models(settings, workload)
    launch = Launch(python, models, free_port(), settings.threads, DTYPE, settings.device, TASKS)
    with running(peer, launch, settings.cache / "logs" / f"http-{outcomes[0].peer}.txt") as (url, pid):
        error = _difference(peer, url, own, texts)
        for outcome in outcomes:
            outcome.error = error
            run_load(url, _traffic(url, peer.request, outcome.tasks, texts), outcome.clients, _WARM_UP_S)
        for _ in range(min(settings.repetitions, _MOST_REPETITIONS)):
            for outcome in outcomes:
                seconds = _SECONDS[outcome.clients]
                traffic = _traffic(url, peer.request, outcome.tasks, texts)
                outcome.theirs.append(run_load(url, traffic, outcome.clients, seconds))
                with _stopped(pid):
                    traffic = _traffic(own, ours, outcome.tasks, texts)
                    outcome.ours.append(run_load(own, traffic, outcome.clients, seconds))
        for outcome in outcomes:
            outcome.memory = memory_bytes(pid)


def _traffic(url: str, request: Callable[[str, str], Request], tasks: int, texts: Sequence[str]) -> list[bytes]:
    turns = ((f"task-{turn % tasks}", texts[turn * 7 % len(texts)]) for turn in range(len(texts)))
    return [request(task, text).encode(url) for task, text in turns]


@contextmanager
def _stopped(pid: int) -> Iterator[None]:
    members = family(pid)
    signal_all(members, signal.SIGSTOP)
    try:
        yield
    finally:
        signal_all(members, signal.SIGCONT)


def _difference(peer: Peer, url: str, own: str, texts: Sequence[str]) -> float:
    """The largest difference of a probability, over one text for each task.

    The requests also make servers load all tasks that they load on first use.
    """
    worst = 0.0
    for number in range(TASKS):
        task, text = f"task-{number}", texts[number]
        expected = read_ours(_post(own, ours(task, text)))
        found: Scores = peer.read(_post(url, peer.request(task, text)))
        if found.keys() != expected.keys():
            raise PeerFailed(f"its labels are {', '.join(found)}")
        worst = max(worst, *(abs(found[label] - expected[label]) for label in expected))
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
