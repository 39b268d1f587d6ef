"""The sequences of shadows, which wait for the time when nothing else does, beside the queue."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.layout.upload import Array
from onebert_server.engine.host import Host
from onebert_server.engine.queue.fair_queue import Bounds
from onebert_server.engine.queue.waiting import WAITING, Texts, joined

# Tokens that may wait, and estimated seconds of a batch of them: a request that comes meanwhile waits for one layer of
# it.
MAX_TOKENS = 16_384
BATCH_SECONDS = 0.006
# Seconds without other work before a batch: the answers of the last batch are written meanwhile.
SHADOW_PAUSE = 0.001
_NOTHING = Texts(np.empty(0, WAITING), np.empty(0, np.int32))


class ShadowRows:
    """Texts of requests in the order in which they came; callers hold the lock of the scheduler."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._hosts = hosts
        self._requests = deque[Texts]()
        self._tokens = 0

    @property
    def waiting(self) -> bool:
        return bool(self._requests)

    def put(self, texts: Texts) -> bool:
        """Keeps the texts of a request if there is room for them; returns whether there is."""
        if self._tokens + len(texts.ids) > MAX_TOKENS:
            return False
        self._requests.append(texts)
        self._tokens += len(texts.ids)
        return True

    def take(self, bounds: Bounds) -> Texts:
        """Takes a small batch of one host; a first sequence over the bound still goes, alone."""
        taken, room = [_NOTHING], 0
        while self._requests:
            texts = self._requests.popleft()
            if len(taken) == 1:
                room = self._hosts[texts.host].speed.tokens_within(BATCH_SECONDS, bounds(texts.host)[0])
            fits = int(texts.rows["tokens"].cumsum().searchsorted(room, "right")) or int(len(taken) == 1)
            if len(taken) > 1 and texts.host != taken[1].host:
                fits = 0
            every = np.arange(len(texts.rows))
            if fits < len(every):
                self._requests.appendleft(texts.part(every[fits:]))
                texts = texts.part(every[:fits])
            taken.append(texts)
            room -= len(texts.ids)
            self._tokens -= len(texts.ids)
            if fits < len(every):
                break
        return joined(taken)

    def remove(self, places: Array) -> NDArray[Any]:
        """Drops the rows of requests, by their places; returns them."""
        left, removed = deque[Texts](), [_NOTHING]
        for texts in self._requests:
            (removed if texts.rows["request"][0] in places else left).append(texts)
        texts = joined(removed)
        self._requests = left
        self._tokens -= len(texts.ids)
        return texts.rows

    def clear(self) -> NDArray[Any]:
        """Drops everything; returns the rows."""
        texts = joined([_NOTHING, *self._requests])
        self._requests.clear()
        self._tokens = 0
        return texts.rows
