"""The signature that every way to compute what lies between the matrix products has."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from onebert_encoder.layout.branches import Branches, LayerSite
from onebert_encoder.layout.stage import Stage


@dataclass(frozen=True)
class Gain:
    """The gain of one LayerNorm.

    Attributes:
        shared: [h], the base's.
        table: [gains, h], those of the rows that have their own.
        of_token: [tokens], which of the table each token takes, or None where all take the base's.
    """

    shared: Tensor
    table: Tensor
    of_token: Tensor | None


class Kernels(Protocol):
    """May write into their first argument, which the caller gives up.

    Attributes:
        name: what operators are shown.
        batch_invariant: whether what a sequence gives depends on itself alone, to the bit.
    """

    name: str
    batch_invariant: bool

    def attend(self, qkv: Tensor, b_q: Tensor, stage: Stage, num_heads: int) -> Tensor:
        """Attention within each sequence.

        Args:
            qkv: [tokens, 3h], the filling included.
            b_q: [rows, h], added to the queries.
            stage: which tokens are a sequence, and its row.
            num_heads: heads of h / num_heads numbers.

        Returns:
            [tokens, h], zero for the filling.
        """
        ...

    def add_norm(self, y: Tensor, x: Tensor, b: Tensor, stage: Stage, gain: Gain, eps: float) -> Tensor:
        """LayerNorm without bias of y + x + b, b of each token's row: [tokens, h] for b [rows, h]."""
        ...

    def add_activate(self, z: Tensor, b: Tensor, stage: Stage) -> Tensor:
        """The activation of z + b, b of each token's row: [tokens, f] for b [rows, f]."""
        ...

    def join(self, branches: Sequence[Branches], stage: Stage) -> Mapping[LayerSite, Any]:
        """What `add_branches` takes, by place: the branches of the rows of a stage, worked out once for all layers."""
        ...

    def add_branches(self, y: Tensor, x: Tensor, joined: Any) -> Tensor:
        """Every run of y with what its branches make of x, which may be y: [tokens, out] for x [tokens, in]."""
        ...
