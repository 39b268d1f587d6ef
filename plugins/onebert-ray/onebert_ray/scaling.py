"""Autoscaling: replicas by load, front ends one per node."""

import math
import time
from collections.abc import Callable
from typing import Any

from ray.serve.config import AutoscalingContext

from onebert_store.command.cluster import ray

# Seconds in which a replica should clear its queue, besides the requests that arrive meanwhile.
CLEARED_WITHIN = 1.0


class Work:
    """The load of one replica in seconds of work per second: forward passes plus queued work.

    The queue alone is no measure, because it stays empty until there is one replica too few.
    """

    def __init__(
        self, busy: Callable[[], float], waiting: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._busy = busy
        self._waiting = waiting
        self._clock = clock
        self._last = clock(), busy()

    def per_second(self) -> float:
        (then, before), self._last = self._last, (self._clock(), self._busy())
        now, after = self._last
        return (after - before) / max(now - then, 1e-3) + self._waiting() / CLEARED_WITHIN


class ByWork:
    """The number of replicas by reported load; Ray Serve applies bounds and delays.

    Above `busy`, the target share of time that a replica computes, queueing delays grow.
    """

    def __init__(self, busy: float) -> None:
        self._busy = busy

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        work = (context.aggregated_metrics or {}).get("work")
        if not work:
            return context.target_num_replicas, {}
        return max(1, math.ceil(sum(work.values()) / self._busy)), {}


def one_a_node(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """One front end per live node with at least one CPU."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    return max(1, len(nodes)), {}
