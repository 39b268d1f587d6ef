"""The work that runs between the layers of a long batch: an equal share for each principal."""

from collections import defaultdict
from collections.abc import Iterable

from onebert_server.engine.request import Request

# Largest share of a batch for one principal between its layers; with more than two principals it is an equal share.
MOST = 0.5


class Beside:
    """Counts the work of each principal in a batch and between its layers.

    A principal may run there until it has over half of `room`. So a flood gets one and a half shares at most, and later
    batches make up for that. If it got more, it would always be ahead of the principals in the batch.

    Attributes:
        tokens: computed tokens of the batch, converted to tokens of the slowest host.
        room: the most tokens of one text between two layers. Shadows count as an empty batch and make way for all.
        seconds: the time of everything between the layers.
    """

    def __init__(self, batch: Iterable[tuple[Request, int]] = ()) -> None:
        self._tokens_of: defaultdict[str, float] = defaultdict(float)
        self.count(batch)
        self.tokens = sum(self._tokens_of.values())
        self.room = self.tokens * min(MOST, 1 / len(self._tokens_of)) if self._tokens_of else float("inf")
        self.seconds = 0.0

    @property
    def served(self) -> set[str]:
        """The principals that get no more."""
        return {principal for principal in self._tokens_of if self.is_served(principal)}

    def is_served(self, principal: str) -> bool:
        return self._tokens_of.get(principal, 0.0) > self.room / 2

    def count(self, taken: Iterable[tuple[Request, int]]) -> None:
        """Counts sequences by request and position."""
        for request, position in taken:
            self._tokens_of[request.principal] += request.costs[position] * request.host.weight
