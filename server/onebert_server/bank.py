"""The bank: folded rows resident on the device, written while the engine reads."""

import threading
from collections.abc import Mapping

import torch
from torch import Tensor

from onebert_encoder.base import Base
from onebert_encoder.batch import BASE_ROW
from onebert_encoder.fold import Head, LowRank, Row, Rows, base_gains, cast_lora, fold, parts_at

_FIRST_CAPACITY = 64


class Bank:
    """Rows by slot; slot `BASE_ROW` is the bare base.

    A slot is written before anybody may name it and freed after nobody does, so the engine reads without a lock. The
    tables double when they are full: the copy is made by the thread that installs, and a batch that is under way keeps
    the table it started with.
    """

    def __init__(self, base: Base) -> None:
        self._base = base
        self._lock = threading.Lock()
        self._bare = fold(base, {})
        g_LN0, gain = base_gains(base)
        self._shift = _Table(self._bare.shift.to(base.dtype))
        self._g_LN0 = _Table(g_LN0.to(base.dtype))
        self._gain = _Table(gain.to(base.dtype))
        self._gain_of_row: list[int] = [0]
        self._lora: list[Mapping[tuple[int, str], LowRank]] = [{}]
        self._heads: list[Head | None] = [None]
        self._free_gains: list[int] = []
        self._free: list[int] = []
        self.part_at: list[int] = [base.config.num_layers]
        self.rows = self._view()

    def install(self, row: Row) -> int:
        """Makes a row resident and returns its slot."""
        with self._lock, torch.inference_mode():
            slot = self._free.pop() if self._free else self._new_slot()
            self._shift.write(slot, row.shift)
            self._gain_of_row[slot] = self._install_gain(row)
            self._lora[slot] = cast_lora(row, self._base.dtype)
            self._heads[slot] = row.head
            self.part_at[slot] = parts_at(row, self._bare)
            self.rows = self._view()
            return slot

    def release(self, slot: int) -> None:
        """Gives a slot back; no request may name it any more."""
        if slot == BASE_ROW:
            raise ValueError("the bare base is never released")
        with self._lock:
            if self._gain_of_row[slot]:
                self._free_gains.append(self._gain_of_row[slot])
            self._gain_of_row[slot] = 0
            self._lora[slot] = {}
            self._heads[slot] = None
            self._free.append(slot)

    @property
    def num_resident(self) -> int:
        """Rows in use, the bare base not counted."""
        return len(self._heads) - 1 - len(self._free)

    @property
    def num_bytes(self) -> int:
        """Bytes of the tables that rows and gains in use take; heads and low-rank differences come on top."""
        return self._shift.bytes_per_row * len(self._heads) + self._gain.bytes_per_row * (1 + self._num_gains)

    @property
    def _num_gains(self) -> int:
        return sum(1 for gain in self._gain_of_row if gain)

    def _new_slot(self) -> int:
        self._gain_of_row.append(0)
        self._lora.append({})
        self._heads.append(None)
        self.part_at.append(0)
        return len(self._heads) - 1

    def _install_gain(self, row: Row) -> int:
        if row.gain is None or row.g_LN0 is None:
            return 0
        gain = self._free_gains.pop() if self._free_gains else 1 + self._num_gains
        self._g_LN0.write(gain, row.g_LN0)
        self._gain.write(gain, row.gain)
        return gain

    def _view(self) -> Rows:
        return Rows(
            shift=self._shift.tensor,
            g_LN0=self._g_LN0.tensor,
            gain=self._gain.tensor,
            gain_of_row=self._gain_of_row,
            lora=self._lora,
            heads=self._heads,
        )


class _Table:
    """A tensor of rows that grows by doubling; row 0 is given."""

    def __init__(self, first: Tensor) -> None:
        self.tensor = first.new_empty(_FIRST_CAPACITY, *first.shape)
        self.tensor[0] = first

    @property
    def bytes_per_row(self) -> int:
        return self.tensor[0].nbytes

    def write(self, index: int, row: Tensor) -> None:
        if index >= len(self.tensor):
            larger = self.tensor.new_empty(2 * len(self.tensor), *self.tensor.shape[1:])
            larger[: len(self.tensor)] = self.tensor
            self.tensor = larger
        self.tensor[index] = row.to(self.tensor.dtype)
