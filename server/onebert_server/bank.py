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

    A slot is written before anybody may name it and freed after nobody does, so the engine reads without a lock. Full
    tables grow by a copy that the installing thread makes; a batch under way keeps the table it started with. `rows`
    and `part_at` share their lists with the bank: they are true for the slots that a reader may name, and for no other.
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
        """Makes a row resident and returns its slot; on failure, such as a full device, nothing is taken."""
        with self._lock, torch.inference_mode():
            slot = self._free.pop() if self._free else self._new_slot()
            try:
                self._shift.write(slot, row.shift)
                self._lora[slot] = cast_lora(row, self._base.dtype)
                self._heads[slot] = row.head
                self.part_at[slot] = parts_at(row, self._bare)
                self._install_gain(slot, row)
            except BaseException:
                self._forget(slot)
                raise
            self.rows = self._view()
            return slot

    def release(self, slot: int) -> None:
        """Gives a slot back; no request may name it any more."""
        if slot == BASE_ROW:
            raise ValueError("the bare base is never released")
        with self._lock:
            self._forget(slot)

    @property
    def num_resident(self) -> int:
        """Rows in use, the bare base not counted."""
        return len(self._heads) - 1 - len(self._free)

    @property
    def num_bytes(self) -> int:
        """Bytes of everything resident: the tables with their room to grow, low-rank differences and heads.

        The base's own pooler, which heads may share, is not counted.
        """
        tables = (self._shift, self._g_LN0, self._gain)
        low_rank = sum(A.nbytes + B.nbytes for row in self._lora for A, B in row.values())
        heads = sum(
            head.weight.nbytes + head.bias.nbytes + _own_dense_bytes(head, self._base) for head in self._heads if head
        )
        return sum(table.tensor.nbytes for table in tables) + low_rank + heads

    @property
    def _num_gains(self) -> int:
        return sum(1 for gain in self._gain_of_row if gain)

    def _forget(self, slot: int) -> None:
        if self._gain_of_row[slot]:
            self._free_gains.append(self._gain_of_row[slot])
        self._gain_of_row[slot] = 0
        self._lora[slot] = {}
        self._heads[slot] = None
        self._free.append(slot)

    def _new_slot(self) -> int:
        self._gain_of_row.append(0)
        self._lora.append({})
        self._heads.append(None)
        self.part_at.append(0)
        return len(self._heads) - 1

    def _install_gain(self, slot: int, row: Row) -> None:
        if row.gain is None or row.g_LN0 is None:
            return
        # Taken before it is written: what fails is then given back, and no other row is ever handed the same gain.
        gain = self._free_gains.pop() if self._free_gains else 1 + self._num_gains
        self._gain_of_row[slot] = gain
        self._g_LN0.write(gain, row.g_LN0)
        self._gain.write(gain, row.gain)

    def _view(self) -> Rows:
        return Rows(
            shift=self._shift.tensor,
            g_LN0=self._g_LN0.tensor,
            gain=self._gain.tensor,
            gain_of_row=self._gain_of_row,
            lora=self._lora,
            heads=self._heads,
        )


def _own_dense_bytes(head: Head, base: Base) -> int:
    shared = base.param("W_p") if base.anatomy.has_pooler else None
    return sum(bias.nbytes + (0 if weight is shared else weight.nbytes) for weight, bias in head.dense)


class _Table:
    """A tensor of rows that grows by an eighth at a time; row 0 is given."""

    def __init__(self, first: Tensor) -> None:
        self.tensor = first.new_empty(_FIRST_CAPACITY, *first.shape)
        self.tensor[0] = first

    def write(self, index: int, row: Tensor) -> None:
        if index >= len(self.tensor):
            capacity = max(index + 1, len(self.tensor) + max(_FIRST_CAPACITY, len(self.tensor) // 8))
            larger = self.tensor.new_empty(capacity, *self.tensor.shape[1:])
            larger[: len(self.tensor)] = self.tensor
            self.tensor = larger
        self.tensor[index] = row.to(self.tensor.dtype)
