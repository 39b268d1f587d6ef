"""The uses of a bank's slots, and the bytes of all banks, which have the same lock.

Of a slot: which row it has, how many sequences read it, and when it was used last.
"""

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count

import numpy as np
import torch
from numpy.typing import NDArray

from onebert_server.engine.memory import memory_limit

# Slots of the arrays of a new bank; the arrays double as the bank grows.
_FIRST_SLOTS = 64


class Uses:
    """Generations, uses and times by slot. Any thread may call; arrays are read and written under `using`.

    A request names a slot with the generation that it was resolved to. A slot gets a new generation with each row, and
    whenever its version may mean something else (`renew`); no generation comes twice in a bank, and none is 0. So
    `hold` refuses whatever is out of date, and what it holds keeps its row until `let_go`: such a row is not evicted,
    and a released one is freed after its last use.

    Attributes:
        using, unused: of `bound`; held for moments only, and never while waiting for another lock.
        generation: 0 for a slot without a row, or whose row is released.
        uses: sequences that wait or run.
        used: seconds of `time.monotonic()`; a time to come keeps a row from eviction until then, or until it is used.
        evictable: whether `oldest` may return the slot.
    """

    def __init__(self, bound: "BankBytes", free: Callable[[int], None]) -> None:
        self.bound, self.using, self.unused = bound, bound.using, bound.unused
        self.generation = np.zeros(_FIRST_SLOTS, np.int64)
        self.uses = np.zeros(_FIRST_SLOTS, np.int32)
        self.used = np.zeros(_FIRST_SLOTS)
        self.evictable = np.zeros(_FIRST_SLOTS, np.bool_)
        self._free_slot = free
        self._generations = count(1)
        # Released slots that are in use.
        self._released: set[int] = set()

    def hold(self, slots: NDArray[np.int32], generations: NDArray[np.int64], fresh: bool = True) -> NDArray[np.bool_]:
        """Counts a use of each slot that still has its generation, and returns which; call it under `using`.

        Slots that do not exist are refused like any other. Rows that are not `fresh` are evicted as if this use had not
        been: shadows are the first that make room for others.
        """
        exists = (slots >= 0) & (slots < len(self.generation)) & (generations > 0)
        held: NDArray[np.bool_] = exists & (self.generation.take(slots, mode="clip") == generations)
        right = slots[held]
        np.add.at(self.uses, right, 1)
        if fresh:
            self.used[right] = time.monotonic()
        return held

    def let_go(self, slots: NDArray[np.int32]) -> None:
        """Ends one use for each of the slots; call it under `using`."""
        np.subtract.at(self.uses, slots, 1)
        unused = slots[self.uses[slots] == 0]
        if not len(unused):
            return
        for slot in self._released.intersection(unused.tolist()) if self._released else ():
            self._released.remove(slot)
            self._free_slot(slot)
        self.unused.notify_all()

    def renew(self, slot: int) -> None:
        """Makes everything out of date that was resolved to this row; a released one stays without a generation."""
        with self.using:
            if self.generation[slot]:
                self.generation[slot] = next(self._generations)

    def oldest(self) -> tuple[float, int] | None:
        """Returns the evictable slot that nobody uses and that was used least recently, behind that time.

        Call it under `using`.
        """
        idle = np.flatnonzero(self.evictable & (self.uses == 0) & (self.used <= time.monotonic()))
        if not len(idle):
            return None
        slot = int(idle[self.used[idle].argmin()])
        return float(self.used[slot]), slot

    def begin(self, slot: int) -> None:
        """Gives a slot with a new row its generation."""
        with self.using:
            while slot >= len(self.generation):
                for name in ("generation", "uses", "used", "evictable"):
                    array = getattr(self, name)
                    setattr(self, name, np.concatenate([array, np.zeros_like(array)]))
            self.generation[slot] = next(self._generations)
            self.used[slot] = time.monotonic()

    def withdraw(self, slot: int) -> None:
        """Ends a slot's generation: what holds the slot goes on, and nothing else holds it any more."""
        with self.using:
            self.generation[slot], self.evictable[slot] = 0, False

    def end(self, slot: int) -> None:
        """Withdraws a slot, and has it freed: at once, or after its last use."""
        with self.using:
            self.withdraw(slot)
            if self.uses[slot]:
                self._released.add(slot)
                return
        # Not under the lock, which every batch takes: memory is freed.
        self._free_slot(slot)


class BankBytes:
    """The bytes that the rows of all banks of a server may take together, and do take.

    Attributes:
        most: the bound.
        banks: their number; on a GPU each allocates an equal part.
        bare: bytes of the rows of bare bases, which always stay.
        lock: held while a row is installed, so that no two rows take the same last bytes.
        using: held while uses of rows are counted; see `Uses`. A holder of `lock` may take it, and not the other way.
        unused: notified when a row may have become one that nobody uses.
    """

    def __init__(self, most: int, banks: int = 1) -> None:
        self.most, self.banks = most, banks
        self.total = self.bare = 0
        self.lock = threading.Lock()
        self.using = threading.RLock()
        self.unused = threading.Condition(self.using)
        self._released: deque[Callable[[], None]] = deque()

    @property
    def most_of_row(self) -> int:
        """Bytes that all rows together may take besides the rows of bare bases."""
        return self.most - self.bare

    def holds(self, size: int) -> bool:
        return self.total + size <= self.most

    def release(self, forget: Callable[[], None]) -> None:
        """Has a row forgotten: at once, or as soon as the thread that holds the lock gives it back."""
        self._released.append(forget)
        self.forget_released()

    def forget_released(self) -> None:
        """Forgets released rows unless another thread holds the lock, which does so afterwards; never blocks."""
        # Check again without the lock: another thread may have found it held and left a row in the deque.
        while self._released and self.lock.acquire(blocking=False):
            try:
                self.forget_now()
            finally:
                self.lock.release()

    def forget_now(self) -> None:
        """Forgets released rows; call it under the lock."""
        while self._released:
            self._released.popleft()()


def default_bank_bytes(device: torch.device) -> int:
    """Returns the default bound: half of the memory, or a quarter of a GPU's free memory."""
    if device.type == "cpu":
        return memory_limit() // 2
    with torch.cuda.device(device):
        return torch.cuda.mem_get_info()[0] // 4
