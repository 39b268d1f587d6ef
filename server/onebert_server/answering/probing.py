"""Has the probe compute texts: a small sample of those that tasks have answered, and those that a request compares."""

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.maths.batch import BASE_ROW
from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context, own_work
from onebert_server.answering.answers import Answerer
from onebert_server.answering.rates import Rates
from onebert_server.engine.engine import Engine
from onebert_server.engine.host import Host
from onebert_server.engine.passes import Item
from onebert_server.engine.request import Request
from onebert_server.limits import MAX_ITEMS
from onebert_store.errors import EngineFailed, VersionUnavailable

# Texts a second that are compared, on average, of a server that has more requests.
RATE = 1.0


class Probing:
    """Computes some answered texts, chosen by chance over time: a task that floods the server does not hide another's.

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


class Vectors:
    """Computes the texts that a request compares; quotas count their tokens and no request."""

    def __init__(self, engine: Engine, rates: Rates, answerer: Answerer) -> None:
        self._engine = engine
        self._rates = rates
        self._answerer = answerer

    async def of(self, base: str, texts: Sequence[Text], until: float, context: Context) -> NDArray[np.float64]:
        """Returns [texts, outputs], on the base with this digest; see `probe`.

        Fewer texts, but some, are computed if the time is over, on the monotonic clock.

        Raises:
            VersionUnavailable: the base is not loaded.
            EngineFailed: the vectors are not finite, or could not be computed.
            QueueFull, OverShare, DeadlineExceeded, ShuttingDown, TooLarge: nothing was computed.
        """
        found = list[NDArray[np.float32]]()
        while len(found) < len(texts) and (not found or time.monotonic() < until):
            found += await self._some(base, texts[len(found) : len(found) + MAX_ITEMS], context)
        return np.array(found, np.float64)

    async def _some(self, base: str, texts: Sequence[Text], context: Context) -> list[NDArray[np.float32]]:
        host = self._engine.hosts.get(base)
        if host is None:
            raise VersionUnavailable("the base of these texts is not loaded")
        split = await self._answerer.split(context, texts, whole=False)
        tokenizer, longest = host.base.tokenizer, host.base.spec.max_length
        items = [Item(tokenizer.cut(one, tokenizer.fit(one, longest)), BASE_ROW) for one in split[base]]
        request = self._engine.submit(host, items, context)
        self._rates.count(context.principal, 0, sum(request.lengths))
        found = await asyncio.wrap_future(request)
        if not all(np.isfinite(one).all() for one in found):
            raise EngineFailed("the base's vectors of these texts are not finite numbers")
        return found
