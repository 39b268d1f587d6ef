"""Which replica is asked: a task is kept on few of them, and on more of them the more is asked of it."""

import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

# Seconds in which what was asked counts half as much.
HALF_LIFE = 10.0
# Tasks whose share is known; of the others hardly anything was asked.
MAX_TASKS = 4096
# Room that a task is given beside its share: with exactly its share of the replicas each of these would have to be met
# by equal numbers of requests.
ROOM = 1.25


class Spread:
    """On how many replicas a task is kept: its share of all that was asked lately, in replicas, and some room.

    Args:
        clock: seconds.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._all = 0.0, clock()

    def ask(self, task: str, replicas: int) -> int:
        """Counts one request; gives the number of replicas of so many that shall answer it, one at least."""
        now = self._clock()
        self._all = _aged(self._all, now) + 1, now
        asked = _aged(self._asked.pop(task, (0.0, now)), now) + 1
        self._asked[task] = asked, now
        if len(self._asked) > MAX_TASKS:
            self._asked.popitem(last=False)
        return min(replicas, max(1, math.ceil(ROOM * replicas * asked / self._all[0] - 1e-9)))


class ByTask(RequestRouter):  # type: ignore[misc]
    """Ray Serve's router with rendezvous hashing: each task has its own order of replicas, and keeps to the first few.

    A replica that comes or goes moves the tasks that it takes or had, and no others.
    Requests that are of no one task go to any replica. Among those that may answer, Ray Serve takes one on which less
    is under way.
    """

    @property
    def supports_rejection_protocol(self) -> bool:
        """No: replicas bound by themselves what they let in, and asking each first would be a message more."""
        return False

    def initialize_state(self, **kwargs: object) -> None:
        """Called by Ray Serve before the first request."""
        self._spread = Spread()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Ranks of replicas: the task's own, then all others, for when its own take nothing more."""
        task = pending_request.metadata.multiplexed_model_id if pending_request is not None else ""
        if not task:
            return [candidate_replicas]
        ordered = sorted(
            candidate_replicas, key=lambda replica: weight(task, replica.replica_id.unique_id), reverse=True
        )
        few = self._spread.ask(task, len(ordered))
        return [ordered[:few], ordered[few:]] if few < len(ordered) else [ordered]


def weight(task: str, replica: str) -> bytes:
    """Of several replicas a task prefers the one with the highest weight; the same in every process."""
    return hashlib.blake2b(f"{task} {replica}".encode(), digest_size=8).digest()


def _aged(counted: tuple[float, float], now: float) -> float:
    count, then = counted
    return count * math.exp2((then - now) / HALF_LIFE)
