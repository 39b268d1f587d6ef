"""A real Ray cluster of one node for tests, and the processes of its workers."""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import ray_head
import ray_nodes
from onebert_encoder.compute.kernels.library import find_library


def give_kernels(cache: Path) -> None:
    """Copies the compiled kernels of this machine: each worker would take a minute of a core to build them."""
    if (library := find_library()) is not None and library.level is None:
        (cache / "onebert").mkdir(mode=0o700)
        shutil.copy(library._name, cache / "onebert")


@contextmanager
def running_cluster(task: str) -> Iterator[tuple[str, Path]]:
    """Address of a cluster, and the folder of its sockets, whose paths may not be long, and of its nodes' caches.

    Args:
        task: name of the function that its workers run; none of them outlives the block.
    """
    folder = Path(tempfile.mkdtemp(prefix="ray-"))
    give_kernels(folder)
    env = environment() | {"XDG_CACHE_HOME": str(folder)}
    command = [sys.executable, ray_head.__file__, str(folder)]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=env) as head:
        words = next((line.split() for line in head.stdout if line.startswith("address")), None)
        assert words, "the cluster does not start"
        yield words[1], folder
        head.stdin.close()
    assert not workers(folder, task)
    shutil.rmtree(folder)


def environment() -> dict[str, str]:
    return os.environ | {"RAY_USAGE_STATS_ENABLED": "0", "RAY_AUTH_MODE": "disabled"}


def workers(folder: Path, task: str) -> list[int]:
    """Processes that run a function: children of the cluster's own raylet, told by the folder in its command line."""
    pids = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            if task.encode() in (path / "cmdline").read_bytes():
                parent = (path / "stat").read_text().rpartition(")")[2].split()[1]
                if str(folder).encode() in Path("/proc", parent, "cmdline").read_bytes():
                    pids.append(int(path.name))
        except OSError:
            continue  # it ended meanwhile
    return pids


class Nodes:
    """A cluster of several nodes on this machine; each has as many processors as it is told to say."""

    def __init__(self, *cpus: int) -> None:
        command = [sys.executable, ray_nodes.__file__, *map(str, cpus)]
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(
            command, stdin=pipe, stdout=pipe, stderr=subprocess.DEVNULL, text=True, env=environment()
        )
        self.address = self._said("address")[1]

    def kill(self) -> None:
        """Ends the node that came last, and every process on it, without a farewell."""
        self._order("kill")

    def add(self, cpus: int) -> None:
        """Brings another node."""
        self._order(f"add {cpus}")

    def close(self) -> None:
        """Ends them all."""
        self.process.stdin.close()
        assert self.process.wait(300) == 0
        self.process.stdout.close()

    def _order(self, order: str) -> None:
        print(order, file=self.process.stdin, flush=True)
        self._said("done")

    def _said(self, word: str) -> list[str]:
        words = next((line.split() for line in self.process.stdout if line.startswith(word)), None)
        assert words, "the cluster has ended"
        return words
