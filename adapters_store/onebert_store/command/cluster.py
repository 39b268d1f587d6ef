"""Connects a command to a Ray cluster and runs its tasks there; no other file starts Ray."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from onebert_store.errors import InvalidSettings, OneBertError, ServerUnreachable

# Ray reads these variables when it is imported: no usage reports, and one attempt instead of twenty at a dead address.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError:
    raise InvalidSettings("--ray needs the package ray: pip install '.[ray]' in the checkout") from None

# Import `ray` and its error from here, so that the variables are set first and a missing package is a one-line error.
__all__ = ["Cluster", "RayError", "connect", "connected", "on_nodes", "ray", "reason", "run"]

T = TypeVar("T")

CONNECT_S = 5.0
DEVICES = ("cpu", "cuda")


def connect(address: str) -> None:
    """Connects to the cluster at `address`, HOST:PORT or auto; raises ServerUnreachable if no cluster answers."""
    try:
        if address != "auto":
            host, _, port = address.rpartition(":")
            if not host or not port.isdigit() or "/" in address:
                raise InvalidSettings("--ray is the HOST:PORT of a cluster's head, or auto")
            # Try a plain connection first: Ray would wait minutes for a dead address.
            socket.create_connection((host, int(port)), CONNECT_S).close()
        ray.init(address, log_to_driver=False, logging_level=logging.ERROR)
    except (OSError, OverflowError):
        detail = "no running Ray cluster is found" if address == "auto" else f"no Ray cluster answers at {address}"
        raise ServerUnreachable(detail) from None
    except (RayError, RuntimeError) as error:  # another version of Ray or Python, or a wrong token
        raise ServerUnreachable(f"the Ray cluster at {address} refuses: {_first_line(error)}") from None


@dataclass(frozen=True)
class Cluster:
    """The device of a cluster's tasks, the CPUs of each live node that has any, and the GPUs of all nodes together."""

    device: str
    cpus: list[int]
    gpus: int

    def slots(self, threads: int = 1) -> int:
        """Returns the number of tasks that run at once, each with a GPU or with so many threads."""
        return self.gpus if self.device == "cuda" else sum(count // threads for count in self.cpus)


@contextmanager
def connected(address: str, device: str | None) -> Iterator[Cluster]:
    """Connects for the block; None is the GPUs' device if there are any.

    Raises:
        ServerUnreachable: no cluster answers there.
        InvalidSettings: the address is invalid, or the cluster lacks the device.
    """
    connect(address)
    try:
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
        cpus, gpus = [int(node.get("CPU", 0)) for node in nodes], sum(int(node.get("GPU", 0)) for node in nodes)
        cluster = Cluster(device or ("cuda" if gpus else "cpu"), [count for count in cpus if count], gpus)
        if cluster.device not in DEVICES:
            raise InvalidSettings(f"--device is {' or '.join(DEVICES)} on a cluster")
        if not cluster.cpus or not cluster.slots():
            raise InvalidSettings(f"the cluster has no {'GPU' if cluster.cpus else 'CPU'}")
        yield cluster
    finally:
        ray.shutdown()


def on_nodes(base: str | None) -> str | None:
    """Returns a base, a Hub id or folder, as nodes can load it: their processes have another working directory."""
    return str(Path(base).expanduser().resolve()) if base is not None and Path(base).expanduser().is_dir() else base


def run(start: Callable[[T], Any], following: Callable[[], T | None], limit: int) -> Iterator[tuple[T, Any]]:
    """Runs at most `limit` tasks at once; yields each with its results as they come, and with an error when it ends.

    `following` returns the next task, or None; a task that it returns again is started again. `start` returns the
    stream of a task's results. The error is StopIteration, or Ray's.
    """
    running: list[tuple[Any, T]] = []
    while True:
        while len(running) < limit and (task := following()) is not None:
            running.append((start(task), task))
        if not running:
            return
        ready, _ = ray.wait([stream for stream, _ in running])
        stream, task = next(entry for entry in running if entry[0] is ready[0])
        try:
            result = ray.get(next(stream))
        except (StopIteration, RayError) as error:
            running.remove((stream, task))
            result = error
        yield task, result


def reason(error: Exception) -> str:
    """Returns why a task ended early: its code's error, or how its worker died."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, OneBertError):
        return cause.detail
    detail = f": {_first_line(cause)}" if isinstance(error, RayTaskError) else ""
    return f"a worker ended with {type(cause).__name__}{detail}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
