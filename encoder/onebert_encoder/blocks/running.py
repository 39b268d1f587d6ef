"""One layer of a forward pass, as a block computes it: weights, the rows' vectors, and operations with both."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from onebert_encoder.compute.kernels.plain import Gain, PlainKernels
from onebert_encoder.compute.plain import Linear
from onebert_encoder.compute.scores import RowScores, Scores
from onebert_encoder.layout.branches import LayerSite
from onebert_encoder.layout.stage import Stage


@dataclass(frozen=True)
class LayerWeights:
    """Shared weights of a layer: products by site, gains [h] by LayerNorm; `identities` are LayerNorms it lacks."""

    W: Mapping[str, Linear]
    g: Mapping[str, Tensor]
    scores: Scores
    identities: Sequence[str] = ()


@dataclass(frozen=True)
class LayerPass:
    """One layer of one stage's pass; its operations may overwrite their last tensor [tokens, width] but `x`.

    Attributes:
        shift: [rows, width], the rows' `FoldedLayer.shift`.
        gain: [gains, norms, h]; entry 0 is the base's.
        gain_of_token: [tokens], index into `gain`; None if all tokens take the base's.
        scales: by place of `PLACES`, a table [entries, width] and the tokens' indices into it; only places in use.
        branches: the arguments of the kernels' `add_branches`.
    """

    layer: int
    weights: LayerWeights
    stage: Stage
    kernels: PlainKernels
    shift: Tensor
    gain: Tensor
    gain_of_token: Tensor | None
    scales: Mapping[str, tuple[Tensor, Tensor]]
    branches: Mapping[LayerSite, Any]
    num_heads: int
    eps: float
    row_scores: Sequence[RowScores]
    drops_attention_output: bool

    def project(self, site: str, x: Tensor) -> Tensor:
        """The product at a site, with the rows' branches."""
        return self._add_branches(site, self.weights.W[site](x), x)

    def adapt(self, site: str, y: Tensor) -> Tensor:
        """`y` plus the adapter of each token's row, applied to `y`."""
        return self._add_branches(site, y, y)

    def scale(self, place: str, y: Tensor) -> Tensor:
        if place not in self.scales:
            return y
        table, of_token = self.scales[place]
        return y * table.index_select(0, of_token)

    def activate(self, site: str, x: Tensor, b: Tensor) -> Tensor:
        """The activation of the product, scaled, + b; one kernel if no row changes the map."""
        if (self.layer, site) in self.branches or site in self.scales:
            return self.kernels.add_activate(self.scale(site, self.project(site, x)), b, self.stage)
        return self.kernels.project_activate(self.weights.W[site], x, b, self.stage)

    def gate(self, site: str, x: Tensor, b: Tensor) -> Tensor:
        """The activation of the first half of the product + b, times the second half; a scale is of the first."""
        z = self.project(site, x)
        if site in self.scales:
            inner, gate = z.chunk(2, dim=1)
            z = torch.cat([self.scale(site, inner), gate], dim=1)
        return self.kernels.add_gate(z, b, self.stage)

    def attend(self, qkv: Tensor, b_q: Tensor) -> Tensor:
        return self.kernels.attend(qkv, b_q, self.stage, self.num_heads, self.weights.scores, self.row_scores)

    def drop(self, y: Tensor) -> Tensor:
        return self.kernels.drop(y, self.stage)

    def add_norm(self, norm: str, y: Tensor, x: Tensor, b: Tensor) -> Tensor:
        """LayerNorm(y + x + b) without the LayerNorm's own bias."""
        return self.kernels.add_norm(y, x, b, self.stage, self._gain(norm), self.eps)

    def norm(self, norm: str, x: Tensor) -> Tensor:
        """LayerNorm(x) without bias, or `x` itself if the layer has no such LayerNorm."""
        return x if norm in self.weights.identities else self.kernels.norm(x, self._gain(norm), self.eps)

    def add(self, y: Tensor, x: Tensor, b: Tensor) -> Tensor:
        """y + x + b."""
        return self.kernels.add(y, x, b, self.stage)

    def _gain(self, norm: str) -> Gain:
        number = list(self.weights.g).index(norm)
        return Gain(self.weights.g[norm], self.gain[:, number], self.gain_of_token)

    def _add_branches(self, site: str, y: Tensor, x: Tensor) -> Tensor:
        branches = self.branches.get((self.layer, site))
        return y if branches is None else self.kernels.add_branches(y, x, branches)
