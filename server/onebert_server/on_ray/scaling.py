"""How many replicas and front ends there are: replicas by the work that is asked of them, front ends one a node."""

import math
import time
from collections.abc import Callable
from typing import Any

from ray.serve.config import AutoscalingContext

from onebert_store.command.cluster import ray

# What of the work that waits a replica is meant to get done within a second, besides what comes meanwhile.
CLEARED_WITHIN = 1.0


class Work:
    """Seconds of work that are asked of one replica a second: what it computed, and what waits.

    What waits alone would not say how many replicas are needed: nothing waits until one too few is there.

    Args:
        busy: seconds of forward passes so far.
        waiting: estimated seconds of work that waits.
        clock: seconds.
    """

    def __init__(
        self, busy: Callable[[], float], waiting: Callable[[], float], clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._busy = busy
        self._waiting = waiting
        self._clock = clock
        self._last = clock(), busy()

    def a_second(self) -> float:
        """The work since this was last asked."""
        (then, before), self._last = self._last, (self._clock(), self._busy())
        now, after = self._last
        return (after - before) / max(now - then, 1e-3) + self._waiting() / CLEARED_WITHIN


class ByWork:
    """How many replicas there shall be; Ray Serve keeps bounds and delays, and says what each replica reported.

    Args:
        busy: the share of its time that a replica is meant to compute. Above it requests wait more and more for each
            other.
    """

    def __init__(self, busy: float) -> None:
        self._busy = busy

    def __call__(self, context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
        """As many as do the work that is asked of all, which those that have reported know."""
        work = (context.aggregated_metrics or {}).get("work")
        if not work:
            return context.target_num_replicas, {}
        return max(1, math.ceil(sum(work.values()) / self._busy)), {}


def one_a_node(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """As many front ends as there are nodes that run replicas; no node takes two."""
    nodes = [node for node in ray.nodes() if node["Alive"] and node["Resources"].get("CPU", 0) >= 1]
    return max(1, len(nodes)), {}
