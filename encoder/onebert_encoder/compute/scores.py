"""The part of attention between queries, keys and softmax; a family names its own (`Family.scores`)."""

from collections.abc import Callable, Mapping

from torch import Tensor

from onebert_store.errors import UnsupportedBase


class Scores:
    """The plain scores of one layer, q kᵀ / √d; subclasses turn queries and keys, or add to their products.

    `q` and `k` are [sequences, heads, tokens, d], sequences padded at their end.
    """

    def turn(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        return q, k

    def added(self, q: Tensor, k: Tensor) -> Tensor | None:
        """Numbers to add to the scaled products, broadcast to [sequences, heads, tokens, tokens]; None for zeros."""
        return None


PLAIN_SCORES = Scores()

MakeScores = Callable[[Callable[[str], Tensor], int], Scores]
"""Makes the scores of a layer, from the base's parameters outside the layers (by symbol) and the layer's number."""

SCORES: Mapping[str, MakeScores] = {"none": lambda param, layer: PLAIN_SCORES}
"""By name; only the plain kernels compute others than `none` (maths/choose.py)."""


def scores_of(name: str) -> MakeScores:
    """The entry of `SCORES`; raises UnsupportedBase without one."""
    if name not in SCORES:
        raise UnsupportedBase(f"its attention scores {name!r} are not computed; computed: {', '.join(SCORES)}")
    return SCORES[name]
