"""The protocol of kernels: the operations between a layer's matrix products."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from onebert_encoder.compute.plain import Linear
from onebert_encoder.compute.scores import PLAIN_SCORES, Scores
from onebert_encoder.layout.branches import Branches, LayerSite
from onebert_encoder.layout.stage import Stage


@dataclass(frozen=True)
class Gain:
    """The gain of one LayerNorm: of the base, and of rows with their own.

    Attributes:
        shared: [h], the base's.
        table: [gains, h]: the base's first.
        of_token: [tokens], index into `table`; None if all tokens take the base's.
    """

    shared: Tensor
    table: Tensor
    of_token: Tensor | None


class Kernels(Protocol):
    """The operations of a layer between its matrix products; each may overwrite its first argument.

    `description` adds the choices made for this machine to `name`; `batch_invariant` kernels give a sequence the same
    bits alone and in every batch.
    """

    name: str

    @property
    def description(self) -> str: ...

    @property
    def batch_invariant(self) -> bool: ...

    def attend(self, qkv: Tensor, b_q: Tensor, stage: Stage, num_heads: int, scores: Scores = PLAIN_SCORES) -> Tensor:
        """Attention in each sequence of `qkv` [tokens, 3h] plus `b_q` [rows, h]: [tokens, h], undefined for filling.

        Fast kernels compute plain scores only; `choose.py` keeps others from them.
        """

    def add_norm(self, y: Tensor, x: Tensor, b: Tensor, stage: Stage, gain: Gain, eps: float) -> Tensor:
        """LayerNorm without bias of y + x + b: [tokens, h]; `b` is [rows, h], and each token takes its row's."""

    def add_activate(self, z: Tensor, b: Tensor, stage: Stage) -> Tensor:
        """The activation of z + b: [tokens, f]; `b` is [rows, f], and each token takes its row's."""

    def drop(self, x: Tensor, stage: Stage) -> Tensor:
        """`x` [tokens, h] with a training step's dropout."""

    def project_activate(self, linear: Linear, x: Tensor, b: Tensor, stage: Stage) -> Tensor:
        """The activation of linear(x) + b: [tokens, h] -> [tokens, f]; `b` as for `add_activate`."""

    def join(self, branches: Sequence[Branches], stage: Stage) -> Mapping[LayerSite, Any]:
        """Prepares the branches of a stage's rows for `add_branches`, by site, once for all layers."""

    def add_branches(self, y: Tensor, x: Tensor, joined: Any) -> Tensor:
        """`y` [tokens, out] plus, in every span, its branches of `x` [tokens, in]; `x` may be `y`."""
