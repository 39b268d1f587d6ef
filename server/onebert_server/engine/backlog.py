"""Running sums over the waiting work of all principals: no query walks the principals."""

from collections import defaultdict


class Backlog:
    """The waiting work of several principals: their number, and their sequences and tokens in all."""

    def __init__(self) -> None:
        self.principals = self.sequences = self.tokens = 0
        # Bit length of a principal's waiting tokens -> [number of such principals, sum of their tokens].
        self._levels: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])

    def change(self, sequences: int, before: int, after: int) -> None:
        """Counts a change of one principal: `sequences` more wait, and `after` tokens instead of `before`."""
        self.sequences += sequences
        self.tokens += after - before
        for tokens, count in ((before, -1), (after, 1)):
            if tokens:
                self.principals += count
                level = self._levels[tokens.bit_length()]
                level[0] += count
                level[1] += count * tokens

    def served(self, tokens: float) -> float:
        """Estimates the tokens that are served until each principal has had `tokens`, or all of its waiting work.

        The estimate is 1 to 1.21 times the true sum: it lumps together principals whose tokens have the same bit length
        as `tokens`.
        """
        return sum(min(held, count * tokens) for count, held in self._levels.values())
