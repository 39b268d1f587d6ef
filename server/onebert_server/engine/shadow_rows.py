"""The sequences of shadows, which wait for the time when nothing else does, beside the queue."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.layout.upload import Array
from onebert_server.engine.host import Host
from onebert_server.engine.queue.fair_queue import Bounds
from onebert_server.engine.queue.waiting import WAITING

# Tokens that may wait, and estimated seconds of a batch of them: a request that comes meanwhile waits for one layer of
# it.
MAX_TOKENS = 16_384
BATCH_SECONDS = 0.006
# Seconds without other work before a batch: the answers of the last batch are written meanwhile.
SHADOW_PAUSE = 0.001


class ShadowRows:
    """WAITING rows of requests in the order in which they came; callers hold the lock of the scheduler."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._requests = deque[NDArray[Any]]()
        self._tokens = 0

    @property
    def waiting(self) -> bool:
        return bool(self._requests)

    def put(self, rows: NDArray[Any]) -> bool:
        """Keeps the rows of a request if there is room for them; returns whether there is."""
        tokens = int(rows["tokens"].sum())
        if self._tokens + tokens > MAX_TOKENS:
            return False
        self._requests.append(rows)
        self._tokens += tokens
        return True

    def take(self, bounds: Bounds) -> NDArray[Any]:
        """Takes a small batch of one host; a first sequence over the bound still goes, alone."""
        taken, room = list[NDArray[Any]](), 0
        while self._requests:
            rows = self._requests[0]
            host = int(rows["host"][0])
            if not taken:
                room = self._hosts[host].speed.tokens_within(BATCH_SECONDS, bounds(host)[0])
            elif host != taken[0]["host"][0]:
                break
            fits = int(np.searchsorted(np.cumsum(rows["tokens"]), room, "right")) or int(not taken)
            taken.append(rows[:fits])
            tokens = int(rows["tokens"][:fits].sum())
            self._tokens -= tokens
            room -= tokens
            if fits < len(rows):
                self._requests[0] = rows[fits:]
                break
            self._requests.popleft()
        return np.concatenate(taken) if taken else np.zeros(0, WAITING)

    def remove(self, places: Array) -> None:
        """Drops the rows of requests, by their places."""
        if self._requests:
            kept = [rows for rows in self._requests if rows["request"][0] not in places]
            self._requests = deque(kept)
            self._tokens = sum(int(rows["tokens"].sum()) for rows in kept)

    def clear(self) -> None:
        self._requests.clear()
        self._tokens = 0
