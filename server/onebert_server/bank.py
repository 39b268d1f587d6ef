"""The bank: folded rows resident on the device, written while the engine reads."""

import threading
from mmap import MAP_ANONYMOUS, MAP_PRIVATE, mmap

import torch
from torch import Tensor

from onebert_encoder.base import Base
from onebert_encoder.batch import BASE_ROW
from onebert_encoder.branches import Branches
from onebert_encoder.fold import fold
from onebert_encoder.rows import Defaults, Head, Row, Rows, cast_branches, parts_at

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
        defaults = Defaults.of(base)
        self._shift = _Table(self._bare.shift.to(base.dtype))
        self._gains = _Own(defaults.g_LN0.to(base.dtype), defaults.gain.to(base.dtype))
        self._scales = _Own(defaults.scale.to(base.dtype))
        self._branches: list[Branches] = [{}]
        self._heads: list[Head | None] = [None]
        self._free: list[int] = []
        self.part_at: list[int] = [base.config.num_layers]
        self.rows = self._view()

    def install(self, row: Row) -> int:
        """Makes a row resident and returns its slot; on failure, such as a full device, nothing is taken."""
        with self._lock, torch.inference_mode():
            slot = self._free.pop() if self._free else self._new_slot()
            try:
                self._shift.write(slot, row.shift)
                self._branches[slot] = cast_branches(row, self._base.dtype)
                # A copy of now lies behind all that folding has allocated, which then goes back in one piece.
                self._heads[slot] = row.head.copied() if row.head else None
                self.part_at[slot] = parts_at(row, self._bare, self._base)
                self._gains.install(slot, row.g_LN0, row.gain)
                self._scales.install(slot, row.scale)
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
        """Bytes of everything resident: the tables with their room to grow, branches and heads.

        The base's own pooler, which heads may share, is not counted.
        """
        tables = (self._shift, *self._gains.tables, *self._scales.tables)
        branches = sum(branch.nbytes for row in self._branches for found in row.values() for branch in found)
        heads = sum(
            head.weight.nbytes + head.bias.nbytes + _own_dense_bytes(head, self._base) for head in self._heads if head
        )
        return sum(table.tensor.nbytes for table in tables) + branches + heads

    def _forget(self, slot: int) -> None:
        self._gains.forget(slot)
        self._scales.forget(slot)
        self._branches[slot] = {}
        self._heads[slot] = None
        self._free.append(slot)

    def _new_slot(self) -> int:
        self._gains.of_row.append(0)
        self._scales.of_row.append(0)
        self._branches.append({})
        self._heads.append(None)
        self.part_at.append(0)
        return len(self._heads) - 1

    def _view(self) -> Rows:
        g_LN0, gain = (table.tensor for table in self._gains.tables)
        return Rows(
            shift=self._shift.tensor,
            g_LN0=g_LN0,
            gain=gain,
            gain_of_row=self._gains.of_row,
            scale=self._scales.tables[0].tensor,
            scale_of_row=self._scales.of_row,
            branches=self._branches,
            heads=self._heads,
        )


def _own_dense_bytes(head: Head, base: Base) -> int:
    shared = base.param("W_p") if base.anatomy.has_pooler else None
    return sum(bias.nbytes + (0 if weight is shared else weight.nbytes) for weight, bias in head.dense)


class _Own:
    """What only some rows have of their own, such as gains; entry 0 of its tables holds for all others."""

    def __init__(self, *defaults: Tensor) -> None:
        self.tables = [_Table(default) for default in defaults]
        self.of_row: list[int] = [0]
        self._free: list[int] = []

    def install(self, slot: int, *own: Tensor | None) -> None:
        if any(one is None for one in own):
            return
        # Taken before it is written: what fails is then given back, and no other row is ever handed the same entry.
        entry = self._free.pop() if self._free else 1 + sum(1 for taken in self.of_row if taken)
        self.of_row[slot] = entry
        for table, one in zip(self.tables, own, strict=True):
            if one is not None:
                table.write(entry, one)

    def forget(self, slot: int) -> None:
        if self.of_row[slot]:
            self._free.append(self.of_row[slot])
        self.of_row[slot] = 0


class _Table:
    """A tensor of rows that grows by an eighth at a time; row 0 is given."""

    def __init__(self, first: Tensor) -> None:
        self.tensor = _room(_FIRST_CAPACITY, first)
        self.tensor[0] = first

    def write(self, index: int, row: Tensor) -> None:
        if index >= len(self.tensor):
            capacity = max(index + 1, len(self.tensor) + max(_FIRST_CAPACITY, len(self.tensor) // 8))
            larger = _room(capacity, self.tensor[0])
            larger[: len(self.tensor)] = self.tensor
            self.tensor = larger
        self.tensor[index] = row.to(self.tensor.dtype)


def _room(rows: int, row: Tensor) -> Tensor:
    """An empty table; on a CPU of pages of its own, which cost nothing until they are written and go back when it goes.

    On the heap the tables that were outgrown would stay: the server keeps freed memory (memory.py).
    """
    if row.device.type != "cpu":
        return row.new_empty(rows, *row.shape)
    pages = mmap(-1, rows * row.nbytes, flags=MAP_PRIVATE | MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=row.dtype).view(rows, *row.shape)
