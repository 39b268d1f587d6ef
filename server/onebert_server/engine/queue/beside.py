"""The room of a batch for others, who may run between its layers."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

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

    def __init__(self, batch: NDArray[Any] | None = None, weight: float = 1.0, names: Sequence[str] = ()) -> None:
        """`batch`: WAITING of a host of this weight; `names`: of its principals, by number."""
        self.tokens, self.room, self.served, self.seconds = 0.0, 0.0, set[str](), 0.0
        if batch is not None:
            tokens_of = np.bincount(batch["principal"], batch["cost"]) * weight
            self.tokens = float(tokens_of.sum())
            self.room = self.tokens * min(MOST, 1 / int(np.count_nonzero(tokens_of)))
            self.served = {names[number] for number in (tokens_of > self.room / 2).nonzero()[0].tolist()}

    @property
    def empty(self) -> bool:
        return self.tokens == 0
