"""Bounds what the server holds for its callers at one time, so that one principal cannot take everything."""

import threading
from collections import Counter

from onebert_store.errors import QueueFull


class Permits:
    """Counts the amounts that principals hold, `most` for all together; thread-safe. `full` is a refusal's message."""

    def __init__(self, most: int, full: str) -> None:
        self._full = full
        self._taken: Counter[str] = Counter()
        self._free = most
        self._lock = threading.Lock()

    def take(self, principal: str, amount: int) -> None:
        """Counts an amount as held until `give_back`; raises QueueFull, and counts nothing, if it is too much."""
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
