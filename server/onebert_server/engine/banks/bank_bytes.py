"""The bytes of the rows of all banks: one bound, and one lock under which rows come and go."""

import threading
from collections import deque
from collections.abc import Callable

import torch

from onebert_server.engine.memory import memory_limit


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
