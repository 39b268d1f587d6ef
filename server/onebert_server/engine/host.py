"""A host: a base in memory, the bank of its tasks' rows, and the engine that computes with both."""

from dataclasses import dataclass

from onebert_encoder.base.base import Base
from onebert_server.engine.bank import Bank
from onebert_server.engine.engine import Engine


@dataclass(frozen=True, eq=False)
class Host:
    """One base that answers; `hosts` are keyed by `digest`, which every delta names, and a server has one of them."""

    base: Base
    bank: Bank
    engine: Engine

    @property
    def digest(self) -> str:
        return self.base.spec.digest
