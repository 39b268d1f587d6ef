"""Chooses the replica for a request: each task stays on few replicas, and on more when its load grows."""

import hashlib
import math
import time
from collections import OrderedDict
from collections.abc import Callable

from ray.serve.request_router import PendingRequest, RequestRouter, RunningReplica

# Seconds after which a request counts half.
HALF_LIFE = 10.0
# Tasks with a counted load; the least recently used task is forgotten first.
MAX_TASKS = 4096
# Factor on a task's share of the replicas. With exactly its share, each of them would need the same number of requests.
ROOM = 1.25


class Spread:
    """Counts recent requests per task and sets each task's number of replicas from its share."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._asked: OrderedDict[str, tuple[float, float]] = OrderedDict()
        self._all = 0.0, clock()

    def ask(self, task: str, replicas: int) -> int:
        """Counts one request and returns how many of the `replicas` may answer it, at least one."""
        now = self._clock()
        self._all = _aged(self._all, now) + 1, now
        requests = _aged(self._asked.pop(task, (0.0, now)), now) + 1
        self._asked[task] = requests, now
        if len(self._asked) > MAX_TASKS:
            self._asked.popitem(last=False)
        return min(replicas, max(1, math.ceil(ROOM * replicas * requests / self._all[0] - 1e-9)))


class ByTask(RequestRouter):  # type: ignore[misc]
    """Ray Serve's router with rendezvous hashing: each task ranks the replicas and uses the first few.

    An added or removed replica moves only the tasks that it gains or had. Requests for several tasks go to any replica.
    """

    @property
    def supports_rejection_protocol(self) -> bool:
        """False: replicas limit admission themselves, and asking first would cost a message per request."""
        return False

    def initialize_state(self, **kwargs: object) -> None:
        self._spread = Spread()

    async def choose_replicas(
        self, candidate_replicas: list[RunningReplica], pending_request: PendingRequest | None = None
    ) -> list[list[RunningReplica]]:
        """Returns ranks of replicas: the task's own first, then all others for when the first accept no more."""
        task = pending_request.metadata.multiplexed_model_id if pending_request is not None else ""
        if not task:
            return [candidate_replicas]
        ordered = sorted(
            candidate_replicas, key=lambda replica: weight(task, replica.replica_id.unique_id), reverse=True
        )
        few = self._spread.ask(task, len(ordered))
        return [ordered[:few], ordered[few:]] if few < len(ordered) else [ordered]


def weight(task: str, replica: str) -> bytes:
    """The rank of a replica for a task (the highest comes first), equal in every process."""
    return hashlib.blake2b(f"{task} {replica}".encode(), digest_size=8).digest()


def _aged(counted: tuple[float, float], now: float) -> float:
    count, then = counted
    return count * math.exp2((then - now) / HALF_LIFE)
