"""Has the probe compute texts that a request compares, whatever their tasks' versions answer."""

import asyncio
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from onebert_encoder.maths.batch import BASE_ROW
from onebert_encoder.text.tokens import Text
from onebert_server.access.context import Context
from onebert_server.answering.answers import Answerer
from onebert_server.engine.engine import Engine
from onebert_server.engine.passes import Item


class Vectors:
    """The vectors of texts on the frozen bases."""

    def __init__(self, engine: Engine, answerer: Answerer) -> None:
        self._engine = engine
        self._answerer = answerer

    async def of(self, base: str, texts: Sequence[Text], context: Context) -> NDArray[np.float64]:
        """Returns [texts, outputs], of the base with this digest; see `probe`.

        Raises as `Engine.submit_all`, and QueueFull if too many texts wait for tokenization.
        """
        host = self._engine.hosts[base]
        tokenizer, longest = host.base.tokenizer, host.base.spec.max_length
        split = await self._answerer.split(context, texts, whole=False)
        items = [Item(tokenizer.cut(one, tokenizer.fit(one, longest)), BASE_ROW) for one in split[base]]
        return np.array(await asyncio.wrap_future(self._engine.submit(host, items, context)), np.float64)
