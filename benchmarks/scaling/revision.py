"""Compares this tree with another revision of it: how `onebert serve` starts as it is, and answers single texts.

    python benchmarks/scaling/revision.py REVISION [--starts 7] [--slices 12] [--seconds 2]

The revision is copied into a temporary folder, and both run on the packages that are installed here. Each server has a
store of sixteen BitFit tasks on the default base and no setting but its port and its folder. First the servers are
started and stopped in turns; then both run, and are asked in turns. The table has the median of the turns, and of the
latencies those of all requests.
"""

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
import tomllib
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median

import httpx

from onebert_bench.engine_load import TEXTS
from onebert_bench.http_load import push_tasks, requests_for
from onebert_bench.load import run_load
from onebert_bench.pages import markdown_table
from onebert_bench.ranks import percentile
from onebert_bench.workload import sentences
from onebert_encoder.base.base import load_base

ROOT = Path(__file__).parents[2]
CLIENTS = (1, 16)
READY_S = 120.0


def main() -> None:
    """Prints a table with a column for each tree."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("revision")
    parser.add_argument("--starts", type=int, default=7)
    parser.add_argument("--slices", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=2.0, help="of a slice")
    asked = parser.parse_args()
    base = load_base()
    texts = sentences(base, TEXTS)
    with tempfile.TemporaryDirectory(prefix="onebert-revision-") as folder:
        trees = [Tree(asked.revision, copied(asked.revision, Path(folder) / "tree"), Path(folder) / "before")]
        trees.append(Tree("this tree", ROOT, Path(folder) / "now"))
        for tree in trees:
            # What only a first start does: kernels are compiled, the store is made.
            with tree.serving() as server:
                push_tasks(server.url, base)
        for turn in range(asked.starts):
            for tree in in_turns(trees, turn):
                with tree.serving() as server:
                    tree.starts.append(server.ready)
                    tree.held.append(server.held)
        for clients in CLIENTS:
            load_both(trees, texts, clients, asked.slices, asked.seconds)
    print(markdown_table(["", *(tree.name for tree in trees)], rows(trees)))


@dataclass
class Tree:
    """A revision, and what was seen of it.

    Attributes:
        name: for the table.
        root: where its files are.
        data: the folder of its store.
        starts: seconds from a start to readiness.
        held: bytes that the process held then.
        latencies: of each number of clients, milliseconds of all answers.
        work: of each number of clients and each slice, milliseconds of processor time for an answer.
    """

    name: str
    root: Path
    data: Path
    starts: list[float] = field(default_factory=list)
    held: list[int] = field(default_factory=list)
    latencies: dict[int, list[float]] = field(default_factory=dict)
    work: dict[int, list[float]] = field(default_factory=dict)

    @contextmanager
    def serving(self) -> Iterator["Server"]:
        """Its `onebert serve` while the block runs."""
        facts = tomllib.loads((self.root / "pyproject.toml").read_text(encoding="utf-8"))
        module, _, function = facts["project"]["scripts"]["onebert"].partition(":")
        packages = facts["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
        with tempfile.TemporaryDirectory() as commands:
            name_commands(Path(commands), facts["project"])
            paths = [commands, *(str((self.root / package).parent) for package in packages)]
            own = {"PYTHONPATH": os.pathsep.join(paths), "ONEBERT_DATA_DIR": str(self.data), "ONEBERT_PORT": "0"}
            inherited = {name: value for name, value in os.environ.items() if not name.startswith("ONEBERT_")}
            started = time.perf_counter()
            with subprocess.Popen(
                [sys.executable, "-c", f"from {module} import {function}; {function}()", "serve"],
                env=inherited | own,
                cwd=commands,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            ) as process:
                try:
                    url = (process.stdout.readline() if process.stdout else "").split()[2].rstrip(":")
                    wait_until_ready(url)
                    yield Server(url, process.pid, time.perf_counter() - started)
                finally:
                    process.terminate()


@dataclass(frozen=True)
class Server:
    """A server that is ready, and how many seconds that took."""

    url: str
    pid: int
    ready: float

    @property
    def held(self) -> int:
        """Bytes that the process holds."""
        return int(Path(f"/proc/{self.pid}/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")

    @property
    def worked(self) -> float:
        """Seconds of processor time so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def copied(revision: str, folder: Path) -> Path:
    """The files of a revision in a folder."""
    command = ["git", "archive", revision]
    packed = subprocess.run(command, cwd=ROOT, capture_output=True, check=True).stdout
    with tarfile.open(fileobj=io.BytesIO(packed)) as files:
        files.extractall(folder, filter="data")
    return folder


def name_commands(folder: Path, project: dict[str, dict[str, dict[str, str]]]) -> None:
    """Makes what an installation leaves of a project: its name and its commands, which may be other ones than here."""
    facts = folder / "onebert-0.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text("Metadata-Version: 2.1\nName: onebert\nVersion: 0\n", encoding="utf-8")
    groups = project["entry-points"].items()
    lines = [line for group, names in groups for line in (f"[{group}]", *(f"{n} = {v}" for n, v in names.items()))]
    (facts / "entry_points.txt").write_text("\n".join(lines), encoding="utf-8")


def wait_until_ready(url: str) -> None:
    """Returns once the server says that it answers."""
    until = time.perf_counter() + READY_S
    while time.perf_counter() < until:
        try:
            if httpx.get(f"{url}/readyz", timeout=READY_S).is_success:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.005)
    raise SystemExit("the server is not ready")


def load_both(trees: Sequence[Tree], texts: Sequence[str], clients: int, slices: int, seconds: float) -> None:
    """Asks both servers for single texts, a slice each in turn, behind one to warm up."""
    with ExitStack() as stack:
        servers = {tree.name: stack.enter_context(tree.serving()) for tree in trees}
        for turn in range(slices + 1):
            for tree in in_turns(trees, turn):
                server = servers[tree.name]
                worked = server.worked
                load = run_load(server.url, requests_for(server.url, texts, 1), clients, seconds)
                if load.refused:
                    raise SystemExit(f"{tree.name} refused {load.refused} requests")
                if turn:
                    tree.latencies.setdefault(clients, []).extend(load.latencies_ms)
                    spent = 1e3 * (server.worked - worked) / len(load.latencies_ms)
                    tree.work.setdefault(clients, []).append(spent)


def in_turns(trees: Sequence[Tree], turn: int) -> Sequence[Tree]:
    """Each tree first in every other turn."""
    return trees if turn % 2 else trees[::-1]


def rows(trees: Sequence[Tree]) -> Iterator[list[str]]:
    """The rows of the table."""
    yield ["ready after", *(f"{median(tree.starts):.2f} s" for tree in trees)]
    yield ["the fastest start", *(f"{min(tree.starts):.2f} s" for tree in trees)]
    yield ["holds then", *(f"{median(tree.held) / 1e6:,.0f} MB" for tree in trees)]
    for clients in CLIENTS:
        who = f"{clients} client" + "s" * (clients > 1)
        found = [tree.latencies[clients] for tree in trees]
        yield [f"{who}: p50, p99", *(f"{percentile(one, 0.5):.2f} ms, {percentile(one, 0.99):.2f} ms" for one in found)]
        yield [f"{who}: processor time of an answer", *(f"{median(tree.work[clients]):.2f} ms" for tree in trees)]


if __name__ == "__main__":
    main()
