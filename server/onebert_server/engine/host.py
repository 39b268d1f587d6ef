"""A host: a base in memory with the bank of its tasks' rows, and their measured speed; an engine has one or several."""

from typing import NamedTuple

from onebert_encoder.base.base import Base
from onebert_encoder.maths.rows import Row
from onebert_server.engine.banks.bank import Bank
from onebert_server.engine.passes import Passes
from onebert_server.engine.speed import Speed


class Host:
    """One base that answers; hosts are found by `digest`, which every delta names."""

    def __init__(self, base: Base, bank: Bank) -> None:
        self.base, self.bank = base, bank
        self.passes = Passes(base, bank)
        self.speed = Speed()

    @property
    def digest(self) -> str:
        return self.base.spec.digest

    def install(self, row: Row) -> "Slot":
        """See `Bank.install`."""
        return Slot(self, self.bank.install(row))


class Slot(NamedTuple):
    """The slot of a row in the bank of its host."""

    host: Host
    number: int

    def release(self) -> None:
        """See `Bank.release`."""
        self.host.bank.release(self.number)

    @property
    def generation(self) -> int:
        """The generation of its row now; see `Uses`."""
        return int(self.host.bank.generation[self.number])

    @property
    def num_bytes(self) -> int:
        return self.host.bank.size_at(self.number)
