"""Bounds what the server holds for its callers at one time, so that one principal cannot take everything."""

import threading
from collections import Counter

from onebert_store.errors import QueueFull


class Permits:
    """Counts the amount that each principal holds; thread-safe.

    Args:
        most: bound for all principals together, in the unit that is counted.
        full: message of a refusal.
    """

    def __init__(self, most: int, full: str) -> None:
        self._full = full
        self._taken: Counter[str] = Counter()
        self._free = most
        self._lock = threading.Lock()

    def take(self, principal: str, amount: int) -> None:
        """Counts an amount as held until `give_back`.

        Raises:
            QueueFull: the amount is too much; nothing is counted.
        """
        with self._lock:
            # As in the engine's queue: a principal may hold no more than is left free.
            if self._taken[principal] + amount > self._free:
                raise QueueFull(self._full)
            self._taken[principal] += amount
            self._free -= amount

    def give_back(self, principal: str, amount: int) -> None:
        with self._lock:
            self._free += amount
            self._taken[principal] -= amount
            if not self._taken[principal]:
                del self._taken[principal]
