"""Connects a command to a Ray cluster and reads the nodes' resources; no other file starts Ray."""

import logging
import os
import socket

from onebert_store.errors import InvalidSettings, OneBertError, ServerUnreachable

# Ray reads these variables when it is imported: no usage reports, and one attempt instead of twenty at a dead address.
os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
os.environ.setdefault("RAY_NUM_REDIS_GET_RETRIES", "1")

try:
    import ray
    from ray.exceptions import RayError, RayTaskError
except ImportError:
    raise InvalidSettings("--ray needs the package ray: pip install 'onebert[ray]'") from None

# Import `ray` and its error from here, so that the variables are set first and a missing package is a one-line error.
__all__ = ["RayError", "connect", "device_of", "ray", "reason", "resources"]

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
        what = "no running Ray cluster is found here" if address == "auto" else f"no Ray cluster answers at {address}"
        raise ServerUnreachable(what) from None
    except (RayError, RuntimeError) as error:  # another version of Ray or Python, or a wrong token
        raise ServerUnreachable(f"the Ray cluster at {address} refuses: {_first_line(error)}") from None


def resources() -> tuple[list[int], int]:
    """Returns the CPUs of each live node that has any, and the GPUs of all nodes together."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    return [int(node["CPU"]) for node in nodes if node.get("CPU", 0) >= 1], sum(int(n.get("GPU", 0)) for n in nodes)


def device_of(wanted: str | None, cpus: list[int], gpus: int) -> str:
    """Returns the device for a cluster's tasks; raises InvalidSettings if the cluster has no such device."""
    device = wanted or ("cuda" if gpus else "cpu")
    if device not in DEVICES:
        raise InvalidSettings(f"--device is {' or '.join(DEVICES)} on a cluster")
    if not cpus or (device == "cuda" and not gpus):
        raise InvalidSettings(f"the cluster has no {'GPU' if cpus else 'CPU'}")
    return device


def reason(error: Exception) -> str:
    """Returns why a task ended early: its code's error, or how its worker died."""
    cause = error.cause if isinstance(error, RayTaskError) else error
    if isinstance(cause, OneBertError):
        return cause.detail
    said = f": {_first_line(cause)}" if isinstance(error, RayTaskError) else ""
    return f"a worker ended with {type(cause).__name__}{said}"


def _first_line(error: Exception) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)[:200]
