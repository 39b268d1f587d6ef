"""Makes room in the banks for one more row: evicts the least recently used version, or waits for one."""

import time
from collections.abc import Callable

from onebert_encoder.maths.rows import Row
from onebert_server.engine.banks.bank import full_device_is_typed
from onebert_server.engine.banks.uses import BankBytes
from onebert_server.engine.host import Host, Slot
from onebert_server.versions.directory import Directory
from onebert_store.errors import BankFull

# Evictions to try when the device is out of memory below our own bound; another process may hold the rest.
EVICTED_FOR_MEMORY = 8
# Longest wait for another row to be given back, in seconds: the requests that use the rows may themselves wait for
# room, each for a row of another one.
ROOM_TIMEOUT = 1.0
# The same right after a refused row: the refused request gives its other rows back at once.
SHORT_ROOM_TIMEOUT = 0.1
# Seconds between two checks of the bank: not every row that goes was a version of the directory.
_RETRY_EVERY = 0.02


class LargerThanBank(BankFull):
    """The row is larger than the whole bank: no eviction makes room for it."""


class BankRoom:
    """Writes rows into the banks, and evicts versions of the directory for them."""

    def __init__(self, bound: BankBytes, directory: Directory) -> None:
        self._bound = bound
        self._directory = directory

    def place(self, host: Host, fold: Callable[[], tuple[Row, int]], make_room: Callable[[int], bool]) -> Slot:
        """Folds a row of a host and installs it; the returned slot belongs to the caller.

        Args:
            fold: returns the row and its bytes; called again if the device had no memory for it.
            make_room: called with these bytes (0 if the fold itself was refused memory) while there is no room; returns
                whether another try may help.
        """
        row, size, refused_below_bound = None, 0, 0
        while True:
            try:
                if row is None:
                    with full_device_is_typed():
                        row, size = fold()
                if size > self._bound.most_of_row:
                    capacity = self._bound.most
                    raise LargerThanBank(f"its row of {size} bytes is larger than the whole bank of {capacity}")
                return host.install(row)
            except LargerThanBank:
                raise
            except BankFull:
                refused_below_bound += self._bound.holds(size)
                if refused_below_bound > EVICTED_FOR_MEMORY or not make_room(size):
                    raise

    def evict(self, size: int, host: Host) -> bool:
        """Evicts one version for a row of `size` bytes of a host; returns whether there was one."""
        # If the bytes are there, the host's own bank or the device is full: a row of the same base makes room in both.
        slot = self._directory.evict(host if self._bound.holds(size) else None)
        if slot is not None:
            slot.release()
        return slot is not None

    def wait(self, size: int, timeout: float, wanted: Callable[[], bool], host: Host) -> bool:
        """Waits until it can evict a version, or a row of `size` bytes fits; returns whether there is more room."""
        until = time.monotonic() + timeout
        while not self.evict(size, host):
            if not wanted() or time.monotonic() >= until:
                return False
            self._directory.wait_for_unused(_RETRY_EVERY)
            if self._bound.holds(size):
                return True
        return True
