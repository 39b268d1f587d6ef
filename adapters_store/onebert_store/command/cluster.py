"""Connects a command to a Ray cluster and runs its tasks there; no other file starts Ray."""

import logging
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

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


class Cluster(NamedTuple):
    """The device of a cluster's tasks, and the number of tasks that run at once, each with a GPU or a core."""

    device: str
    slots: int


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
        cpus, gpus = (sum(int(node.get(kind, 0)) for node in nodes) for kind in ("CPU", "GPU"))
        device = device or ("cuda" if gpus else "cpu")
        if device not in DEVICES:
            raise InvalidSettings(f"--device is {' or '.join(DEVICES)} on a cluster")
        slots = gpus if device == "cuda" else cpus
        if not cpus or not slots:
            raise InvalidSettings(f"the cluster has no {'GPU' if cpus else 'CPU'}")
        yield Cluster(device, slots)
    finally:
        ray.shutdown()


def on_nodes(base: str | None) -> str | None:
    """Returns a base, a Hub id or folder, as nodes can load it: their processes have another working directory."""
    return str(Path(base).expanduser().resolve()) if base is not None and Path(base).expanduser().is_dir() else base


def run(start: Callable[[T], Any], following: Callable[[], T | None], limit: int) -> Iterator[tuple[T, Any]]:
    """Runs at most `limit` tasks at once; yields each with its results as they come, and with an error when it ends.

    `following` returns the next task, or None. `start` returns the stream of a task's results. The error is
    StopIteration, or Ray's.
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
