"""Has the probe compute a small sample of the texts that tasks have answered, while nothing else waits."""

import random
import time
from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.maths.batch import BASE_ROW
from onebert_server.access.context import own_work
from onebert_server.engine.engine import Engine
from onebert_server.engine.host import Host
from onebert_server.engine.passes import Item
from onebert_server.engine.request import Request

# Texts a second that are compared, on average, of a server that has more requests.
RATE = 1.0


class Probing:
    """Chooses texts by chance over time: a task that floods the server does not hide another's.

    Args:
        takers: by the digest of a base, gets its vectors [outputs] on the engine's thread.
    """

    def __init__(self, engine: Engine, takers: Mapping[str, Callable[[NDArray[np.float64]], None]]) -> None:
        self._engine = engine
        self._takers = takers
        self._due = 0.0

    def is_due(self) -> bool:
        """Whether a text of now shall be computed."""
        now = time.monotonic()
        due = now >= self._due
        if due:
            self._due = now + random.expovariate(RATE)
        return due

    def compute(self, host: Host, item: Item) -> None:
        """Computes a text that is answered, if the lane of the shadows has room."""
        request = self._engine.submit_shadow(host, [Item(item.tokens, BASE_ROW)], own_work("probe"))
        if request is not None:
            request.add_done_callback(partial(self._computed, request))

    def _computed(self, request: Request, _: object) -> None:
        """Runs on the engine's thread."""
        if not request.cancelled() and request.exception() is None:
            [vector] = request.result()
            if np.isfinite(vector).all():
                self._takers[request.host.digest](np.array(vector, np.float64))
