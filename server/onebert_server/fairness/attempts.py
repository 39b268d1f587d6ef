"""Bounds what addresses try without a valid key."""

from collections import OrderedDict

from onebert_server.fairness.rates import Bucket
from onebert_store.errors import TooManyAttempts


class Attempts:
    """Limits requests without a valid key per address: a burst of `AT_ONCE`, then `A_SECOND` per second.

    Whoever has a valid key passes: he may share an address, as behind a proxy, and nobody can guess a 128-bit key.
    """

    AT_ONCE, A_SECOND = 100, 10
    ADDRESSES = 4096

    def __init__(self) -> None:
        # By address, least recently used first.
        self._buckets: OrderedDict[str, Bucket] = OrderedDict()

    def count(self, address: str, now: float) -> None:
        """Counts one attempt; raises TooManyAttempts if the address is over the limit."""
        bucket = self._buckets.setdefault(address, Bucket(self.A_SECOND, self.AT_ONCE, now))
        self._buckets.move_to_end(address)
        if len(self._buckets) > self.ADDRESSES:
            self._buckets.popitem(last=False)
        if bucket.fill(now) < 1:
            raise TooManyAttempts("too many requests without a valid key came from this address", 1)
        bucket.level -= 1

    def give_back(self, address: str) -> None:
        """Takes one attempt back: its token was valid."""
        if bucket := self._buckets.get(address):
            bucket.level += 1
