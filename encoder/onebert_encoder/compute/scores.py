"""The part of attention between queries, keys and softmax; scores_table.py has every kind."""

from torch import Tensor


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
