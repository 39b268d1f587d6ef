"""The room of a batch for others, who may run between its layers."""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from onebert_server.engine.request import Request

# Largest share of a batch for one principal between its layers; with more than two principals it is an equal share.
MOST = 0.5


class Beside:
    """The principals of a batch, and the room that it leaves between its layers. An empty one makes way for all.

    Attributes:
        tokens: computed tokens of the batch, converted to tokens of the slowest host.
        room: the most tokens of one text between two layers, and of the work (`FairQueue`) by which a principal may be
            ahead of all others.
        served: the principals with over half of `room` in the batch, which wait for the next batch.
        seconds: the time of everything between the layers.
    """

    def __init__(self, batch: Iterable[tuple[Request, int]] = ()) -> None:
        tokens_of = dict[str, float]()
        for request, position in batch:
            tokens = request.costs[position] * request.host.weight
            tokens_of[request.principal] = tokens_of.get(request.principal, 0.0) + tokens
        self.tokens = sum(tokens_of.values())
        self.room = self.tokens * min(MOST, 1 / max(len(tokens_of), 1))
        self.served = {principal for principal, tokens in tokens_of.items() if tokens > self.room / 2}
        self.seconds = 0.0

    @classmethod
    def of(cls, batch: NDArray[Any], weight: float, names: Sequence[str]) -> "Beside":
        """Returns the room of a batch: WAITING of a host of this weight, and the names of its principals."""
        beside = cls()
        tokens_of = np.bincount(batch["principal"], batch["cost"]) * weight
        beside.tokens = float(tokens_of.sum())
        beside.room = beside.tokens * min(MOST, 1 / max(int(np.count_nonzero(tokens_of)), 1))
        beside.served = {names[number] for number in np.flatnonzero(tokens_of > beside.room / 2).tolist()}
        return beside

    @property
    def empty(self) -> bool:
        return self.tokens == 0
