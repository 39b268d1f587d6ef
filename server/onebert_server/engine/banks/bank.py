"""The bank: folded rows on the device, bounded in bytes, written while the engine reads."""

import mmap
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial

import numpy as np
import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.compute.scores import RowScores
from onebert_encoder.layout.branches import Branches
from onebert_encoder.layout.upload import Array
from onebert_encoder.maths.batch import BASE_ROW
from onebert_encoder.maths.fold import fold_bare
from onebert_encoder.maths.rows import Defaults, Head, Number, Row, Rows, cast_branches, diverges_at, empty_numbers
from onebert_server.engine.banks.uses import BankBytes, Uses, default_bank_bytes
from onebert_store.errors import BankFull

# MAP_NORESERVE, on Linux only (Python names it from 3.13 on): reserved pages do not count as used until they are
# written.
_MAP_NORESERVE = 0x4000 if sys.platform == "linux" else 0
# Rows of the smallest table, even on a machine that refuses to reserve more.
_LEAST_ROWS = 64


class Bank(Uses):
    """Rows by slot; slot `BASE_ROW` is the bare base, whose answers are vectors.

    A slot is written before any request can hold it and freed after its last use, so the engine reads without a lock.
    The tables' addresses are reserved once and never change. On a CPU reserved memory costs nothing until it is
    written, and the pages of a released row return to the system; on a GPU half of the bound is allocated at once.
    `rows` and `diverges_at` share lists and arrays with the bank, which may be longer than it has rows: only the slots
    that a reader may name are valid in them.
    All banks of a server share one `bound`.
    """

    def __init__(self, base: Base, bound: BankBytes | None = None) -> None:
        super().__init__(bound or BankBytes(default_bank_bytes(base.device)), self._release)
        self._base = base
        self._bare = fold_bare(base)
        defaults = Defaults.for_base(base)
        first = [self._bare.shift, defaults.g_LN0, defaults.gain, *defaults.scales.values()]
        first = [tensor.to(base.dtype) for tensor in first]
        self._shift, g_LN0, gain, *scales = (_Table(tensor, self._capacity(tensor, first)) for tensor in first)
        self._gains = _Own(Number.GAIN, g_LN0, gain)
        of_places = enumerate(zip(defaults.scales, scales, strict=True), Number.SCALES)
        self._scales = {place: _Own(column, table) for column, (place, table) in of_places}
        self._branches: list[Branches] = [Branches()]
        self._scores: list[RowScores] = [{}]
        head = self._bare.head
        self._heads = [head]
        self._numbers = empty_numbers(_LEAST_ROWS, base)
        self._numbers[BASE_ROW, : Number.BRANCHES] = head.numbers if head else 0
        self._row_bytes: list[int] = [sum(tensor.nbytes for tensor in first) + (head.nbytes if head else 0)]
        self._free: list[int] = []
        self.num_bytes = 0
        with self.bound.lock:
            self._count(self._row_bytes[BASE_ROW])
            self.bound.bare += self._row_bytes[BASE_ROW]
        self.diverges_at = np.full(_LEAST_ROWS, base.config.num_layers)
        self.rows = self._view()
        self.begin(BASE_ROW)

    def install(self, row: Row) -> int:
        """Makes a row resident and returns its slot; raises BankFull, and takes nothing, if the row does not fit."""
        try:
            with self.bound.lock, torch.inference_mode(), full_device_is_typed():
                return self._install(row)
        finally:
            self.bound.forget_released()

    def _install(self, row: Row) -> int:
        self.bound.forget_now()
        branches = cast_branches(row, self._base.dtype)
        size = self._size(row, branches)
        if not self.bound.holds(size):
            raise BankFull(f"the rows of all versions in memory would be over {self.bound.most} bytes")
        slot = self._free.pop() if self._free else self._new_slot()
        try:
            self._shift.write(slot, row.shift)
            self._branches[slot] = branches
            self._scores[slot] = {name: scores.clone() for name, scores in row.scores.items()}
            # The head is cloned last: it then lies above the temporaries of `fold` in memory, and the allocator can
            # return those as one block.
            head = self._heads[slot] = row.head.copied() if row.head else None
            self._numbers[slot, : Number.BRANCHES] = head.numbers if head else 0
            self._numbers[slot, Number.BRANCHES] = bool(branches)
            self.diverges_at[slot] = diverges_at(row, self._bare, self._base)
            self._gains.install(self._numbers[slot], row.g_LN0, row.gain)
            for place, scale in row.scales.items():
                self._scales[place].install(self._numbers[slot], scale)
        except BaseException:
            self._forget(slot)
            raise
        self._row_bytes[slot] = size
        self._count(size)
        self.rows = self._view()
        self.begin(slot)
        return slot

    def release(self, slot: int) -> None:
        """Takes a row from its slot: no request can hold it any more. It is freed after its last use.

        It never blocks: while another thread installs a row, the slot is freed only after that.
        """
        if slot == BASE_ROW:
            raise ValueError("the bare base is never released")
        self.end(slot)

    def size(self, row: Row) -> int:
        """Returns the bytes that a row would take on the device."""
        return self._size(row, cast_branches(row, self._base.dtype))

    def size_at(self, slot: int) -> int:
        return self._row_bytes[slot]

    def least_row_bytes(self, labels: int) -> int:
        """Returns the least bytes of a row with so many labels: its shift and its head."""
        return self._shift.row_bytes + labels * (self._base.config.hidden_size + 1) * torch.float32.itemsize

    @property
    def num_resident(self) -> int:
        """Rows in memory, without the bare base."""
        return len(self._heads) - 1 - len(self._free)

    def _capacity(self, row: Tensor, all_rows: Sequence[Tensor]) -> int:
        """Returns a table's number of rows: on a CPU as if it were the only table, on a GPU its share of one half."""
        if self._base.device.type == "cpu":
            return max(_LEAST_ROWS, self.bound.most // row.nbytes)
        return max(_LEAST_ROWS, self.bound.most // 2 // self.bound.banks // sum(tensor.nbytes for tensor in all_rows))

    def _size(self, row: Row, branches: Branches) -> int:
        """Returns a row's bytes on the device, without the base's own pooler, which heads may share."""
        size = self._shift.row_bytes
        if row.gain is not None:
            size += self._gains.row_bytes
        size += sum(self._scales[place].row_bytes for place in row.scales)
        size += sum(scores.nbytes for scores in row.scores.values())
        size += sum(branch.nbytes for of_place in branches.values() for branch in of_place)
        if row.head is not None:
            size += row.head.nbytes + _own_dense_bytes(row.head, self._base)
        return size

    def _release(self, slot: int) -> None:
        self.bound.release(partial(self._forget, slot))

    def _forget(self, slot: int) -> None:
        self._shift.forget(slot)
        for tables in (self._gains, *self._scales.values()):
            tables.forget(self._numbers[slot])
        self._branches[slot] = Branches()
        self._scores[slot] = {}
        self._heads[slot], self._numbers[slot] = None, 0
        self._count(-self._row_bytes[slot])
        self._row_bytes[slot] = 0
        self._free.append(slot)

    def _count(self, size: int) -> None:
        self.num_bytes += size
        self.bound.total += size

    def _new_slot(self) -> int:
        if len(self._heads) == len(self._numbers):
            self._numbers = np.concatenate([self._numbers, np.zeros_like(self._numbers)])
            self.diverges_at = np.concatenate([self.diverges_at, np.zeros_like(self.diverges_at)])
        self._branches.append(Branches())
        self._scores.append({})
        self._heads.append(None)
        self._row_bytes.append(0)
        return len(self._heads) - 1

    def _view(self) -> Rows:
        g_LN0, gain = (table.written for table in self._gains.tables)
        return Rows(
            shift=self._shift.written,
            g_LN0=g_LN0,
            gain=gain,
            scales={place: scale.tables[0].written for place, scale in self._scales.items()},
            branches=self._branches,
            scores=self._scores,
            heads=self._heads,
            numbers=self._numbers,
        )


def _own_dense_bytes(head: Head, base: Base) -> int:
    shared = base.param("W_p") if base.anatomy.has_pooler else None
    return sum(tensor.nbytes for layer in head.dense for tensor in layer.tensors if tensor is not shared)


@contextmanager
def full_device_is_typed() -> Iterator[None]:
    """Turns every out-of-memory error into `BankFull`; on a CPU PyTorch has no type for it."""
    try:
        yield
    except (MemoryError, RuntimeError) as error:
        refused = isinstance(error, MemoryError | torch.OutOfMemoryError) or "DefaultCPUAllocator" in str(error)
        if not refused:
            raise
        raise BankFull("the device has no memory left for another row") from None


class _Own:
    """Tables of values that only some rows have, such as gains; entry 0 holds the base's, for all other rows.

    A row's entry is one of its numbers, in the tables' `column`.
    """

    def __init__(self, column: int, *tables: "_Table") -> None:
        self.tables = tables
        self._column = column
        self._entries = 1
        self._free: list[int] = []

    @property
    def row_bytes(self) -> int:
        return sum(table.row_bytes for table in self.tables)

    def install(self, numbers: Array, *tensors: Tensor | None) -> None:
        if any(tensor is None for tensor in tensors):
            return
        # Take the entry before writing it: if the write fails, `forget` gives it back like any other.
        if not self._free:
            self._free.append(self._entries)
            self._entries += 1
        entry = numbers[self._column] = self._free.pop()
        for table, tensor in zip(self.tables, tensors, strict=True):
            if tensor is not None:
                table.write(entry, tensor)

    def forget(self, numbers: Array) -> None:
        entry, numbers[self._column] = int(numbers[self._column]), 0
        if entry:
            for table in self.tables:
                table.forget(entry)
            self._free.append(entry)


class _Table:
    """A tensor of rows at a fixed address; `written` views the rows up to the highest that was ever written."""

    def __init__(self, first: Tensor, capacity: int) -> None:
        self._all, self._pages = _reserve(capacity, first)
        self._all[0] = first
        self.row_bytes = first.nbytes
        self.written = self._all[:1]

    def write(self, index: int, row: Tensor) -> None:
        if index >= len(self._all):
            raise BankFull(f"the bank has room for {len(self._all)} rows")
        self._all[index] = row.to(self._all.dtype)
        if index >= len(self.written):
            self.written = self._all[: index + 1]

    def forget(self, index: int) -> None:
        """Returns the pages of a row to the system, on a CPU under Linux; nobody may read the row."""
        if self._pages is None or sys.platform != "linux":
            return
        # Whole pages only: the row's neighbours use a part of its first and its last page.
        start = -(-index * self.row_bytes // mmap.PAGESIZE) * mmap.PAGESIZE
        end = (index + 1) * self.row_bytes // mmap.PAGESIZE * mmap.PAGESIZE
        if start < end <= len(self._pages):
            self._pages.madvise(mmap.MADV_DONTNEED, start, end - start)


def _reserve(rows: int, row: Tensor) -> tuple[Tensor, mmap.mmap | None]:
    """Reserves an empty table [rows, *row.shape]; on a CPU its pages, the second result, cost nothing until written."""
    # A machine that counts reserved memory as used (`vm.overcommit_memory=2`) may refuse; each retry asks for half
    # the rows.
    if row.device.type != "cpu":
        return row.new_empty(rows, *row.shape), None
    while True:
        try:
            pages = mmap.mmap(-1, rows * row.nbytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
            return torch.frombuffer(pages, dtype=row.dtype).view(rows, *row.shape), pages
        except OSError:
            if rows <= _LEAST_ROWS:
                raise
            rows //= 2
