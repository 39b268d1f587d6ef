"""A bound on what the server holds for its callers at one time, of which one principal cannot take all."""

import threading
from collections import Counter

from onebert_store.errors import QueueFull


class Permits:
    """Counts what is held for each principal; thread-safe.

    Args:
        most: what may be held for all together, in whatever unit is counted.
        full: what a refusal says.
    """

    def __init__(self, most: int, full: str) -> None:
        self._full = full
        self._taken: Counter[str] = Counter()
        self._free = most
        self._lock = threading.Lock()

    def take(self, principal: str, amount: int) -> None:
        """Counts what is held from now on, until `give_back`.

        Raises:
            QueueFull: it would be too much; nothing is counted.
        """
        with self._lock:
            # As in the engine's queue: a principal may hold no more than is left free.
            if self._taken[principal] + amount > self._free:
                raise QueueFull(self._full)
            self._taken[principal] += amount
            self._free -= amount

    def give_back(self, principal: str, amount: int) -> None:
        """Counts what is no longer held."""
        with self._lock:
            self._free += amount
            self._taken[principal] -= amount
            if not self._taken[principal]:
                del self._taken[principal]
