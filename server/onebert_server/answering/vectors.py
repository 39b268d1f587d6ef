"""Has the probe compute texts that a request compares, whatever their tasks' versions answer."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context
from onebert_server.answering.admission import Admission
from onebert_server.answering.answers import Answerer
from onebert_server.limits import MAX_ITEMS


class Vectors:
    """The vectors of texts on the frozen bases."""

    def __init__(self, admission: Admission, answerer: Answerer) -> None:
        self._admission = admission
        self._answerer = answerer

    async def of(self, base: str, texts: Sequence[Text], until: float, context: Context) -> NDArray[np.float64]:
        """Returns [texts, outputs], of the base with this digest; see `probe`.

        Fewer texts, but some, are computed if the time is over, on the monotonic clock. Raises as `Admission.probe`,
        and QueueFull if too many texts wait for tokenization.
        """
        found = list[NDArray[np.float32]]()
        while len(found) < len(texts) and (not found or time.monotonic() < until):
            split = await self._answerer.split(context, texts[len(found) : len(found) + MAX_ITEMS], whole=False)
            found += await self._admission.probe(context, base, split)
        return np.array(found, np.float64)
