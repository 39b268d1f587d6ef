"""Sums over what waits of each principal, kept while it changes: a question about all principals walks none of them."""

from collections import defaultdict


class Backlog:
    """What waits of several principals.

    Attributes:
        principals: how many have something waiting.
        sequences, tokens: how many wait, of all principals together.
    """

    def __init__(self) -> None:
        self.principals = self.sequences = self.tokens = 0
        # How many principals have so many tokens waiting, and these tokens: by the length of that number in binary.
        self._levels: defaultdict[int, list[int]] = defaultdict(lambda: [0, 0])

    def change(self, sequences: int, before: int, after: int) -> None:
        """Counts a change of one principal.

        Args:
            sequences: how many more of it wait.
            before: its tokens that waited; 0 where nothing did.
            after: its tokens that wait; 0 where nothing does.
        """
        self.sequences += sequences
        self.tokens += after - before
        for tokens, count in ((before, -1), (after, 1)):
            if tokens:
                self.principals += count
                level = self._levels[tokens.bit_length()]
                level[0] += count
                level[1] += count * tokens

    def served(self, tokens: float) -> float:
        """Tokens that are served until each principal has had so many, or all that waits of it.

        About: never less, and at most 1.21 times as many. Only principals whose tokens have as many binary digits as
        `tokens` are not told apart.
        """
        return sum(min(held, count * tokens) for count, held in self._levels.values())
