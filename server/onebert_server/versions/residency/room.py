"""Room in the bank for one more row: the least recently used versions give theirs; where all are in use, one waits."""

import time
from collections.abc import Callable

from onebert_encoder.maths.rows import Row
from onebert_server.engine.bank import Bank, full_device_is_typed
from onebert_server.versions.directory import Directory
from onebert_store.errors import BankFull

# Rows that make room for one where the device refuses memory although the bank's bound is kept: somebody else may have
# taken that memory, and no eviction brings it back.
EVICTED_FOR_MEMORY = 8
# Seconds after which a row is refused where no other row was given back meanwhile: the requests that use the rows may
# themselves wait for room, each for what another one holds.
PATIENCE = 1.0
# The same for a row that comes right after a refused one: the refused request gives its other rows back at once.
SHORT_PATIENCE = 0.1
# Seconds between two looks at the bank: not every row that goes was a version of the directory.
_LOOK_AGAIN = 0.02


class LargerThanBank(BankFull):
    """A row for which no eviction makes room."""


class Room:
    """Puts rows into the bank and evicts versions of the directory for them."""

    def __init__(self, bank: Bank, directory: Directory) -> None:
        self._bank = bank
        self._directory = directory

    def place(self, fold: Callable[[], tuple[Row, int]], make_room: Callable[[int], bool]) -> int:
        """Folds a row and installs it.

        Args:
            fold: gives the row and its size in bytes; called again where the device had no memory for it.
            make_room: called with that size (0 where the fold itself was refused memory) as often as there is no room;
                returns whether trying again may help.

        Returns:
            The row's slot, which is the caller's.

        Raises:
            LargerThanBank: the row fits into no bank of this size.
            BankFull: there is no room, and `make_room` made none.
        """
        row, size, refused_below_bound = None, 0, 0
        while True:
            try:
                if row is None:
                    with full_device_is_typed():
                        row, size = fold()
                if size > self._bank.max_row_bytes:
                    whole = self._bank.max_bytes
                    raise LargerThanBank(f"its row of {size} bytes is larger than the whole bank of {whole}")
                return self._bank.install(row)
            except LargerThanBank:
                raise
            except BankFull:
                refused_below_bound += self.holds(size)
                if refused_below_bound > EVICTED_FOR_MEMORY or not make_room(size):
                    raise

    def holds(self, size: int) -> bool:
        """Whether the bank's bound leaves room for a row of so many bytes."""
        return self._bank.num_bytes + size <= self._bank.max_bytes

    def evict(self) -> bool:
        """Takes the row of the version that was not used for the longest time; false where all are in use."""
        slot = self._directory.evict()
        if slot is not None:
            self._bank.release(slot)
        return slot is not None

    def wait(self, size: int, patience: float, wanted: Callable[[], bool]) -> bool:
        """Waits until a version can be evicted, and evicts it, or until a row of so many bytes fits without that.

        Args:
            size: of the row in bytes.
            patience: seconds to wait at most.
            wanted: whether there is still somebody to wait for.

        Returns:
            Whether there is more room than before.
        """
        until = time.monotonic() + patience
        while not self.evict():
            if not wanted() or time.monotonic() >= until:
                return False
            self._directory.wait_for_unused(_LOOK_AGAIN)
            if self.holds(size):
                return True
        return True
