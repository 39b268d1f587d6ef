"""The encoder's forward pass, for training and serving: shared weights, one gathered row per sequence.

`x` is [tokens, h] and lacks the bias of its last LayerNorm: that bias is folded into the vectors that are added next
(see fold.py). `kernels` compute everything between the matrix products.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.base.base import Base
from onebert_encoder.compute.kernels.protocol import Gain, Kernels
from onebert_encoder.compute.plain import Linear
from onebert_encoder.layout.branches import LayerSite
from onebert_encoder.layout.dropout import NO_DROPOUT, Dropout
from onebert_encoder.layout.stage import Stage
from onebert_encoder.layout.upload import upload
from onebert_encoder.maths.batch import Batch
from onebert_encoder.maths.choose import choose_forward, choose_kernels
from onebert_encoder.maths.rows import Rows


@dataclass(frozen=True)
class Gathered:
    """Gains, scales and branches of one stage's rows, gathered once for all its layers.

    `gains` and `scales` are indices [tokens] into their tables, left out if every row keeps the base's; `branches` are
    the arguments of the kernels' `add_branches`.
    """

    gains: Tensor | None
    scales: Mapping[str, Tensor]
    branches: Mapping[LayerSite, Any]

    @classmethod
    def of(cls, rows: Rows, stage: Stage, kernels: Kernels) -> "Gathered":
        tables = {"gains": rows.gain_of_row, **{place: scales.of_row for place, scales in rows.scales.items()}}
        needed = {name: stage.of_token(table) for name, table in tables.items()}
        found = upload({name: index for name, index in needed.items() if index is not None}, stage.row_of_token.device)
        return cls(found.pop("gains", None), found, kernels.join(rows.branches, stage))


@dataclass(frozen=True)
class Pass:
    """One stage of a forward pass: the data that its layers share, and the mathematics of a layer."""

    base: Base
    rows: Rows
    stage: Stage
    gathered: Gathered
    kernels: Kernels

    def layer(self, layer: int, x: Tensor) -> Tensor:
        """[tokens, h] to [tokens, h]: BitFit's equations 1 to 5, with folded vectors instead of the eight biases."""
        W, h, f = self.base.layers[layer], self.base.config.hidden_size, self.base.config.intermediate_size
        b_q, b_m1, b_m3, b_m2 = torch.split(self.rows.shift[:, layer], [h, h, h, f], dim=1)

        qkv = self.scale_keys_and_values(self.project(W.W_qkv, x, layer, "qkv"), layer)
        context = self.kernels.attend(qkv, b_q, self.stage, self.base.config.num_heads)
        y = self.scale(self.project(W.W_m1, context, layer, "m1"), layer, "m1")
        y = self.drop_attention_output(y)
        x = self.add_norm(self.adapt(y, layer, "after_m1"), x, b_m1, self.gain(W.g_LN1, layer, 0))

        a = self.activate(W.W_m2, x, b_m2, layer)
        y = self.scale(self.project(W.W_m3, self.scale(a, layer, "inner"), layer, "m3"), layer, "m3")
        y = self.adapt(self.kernels.drop(y, self.stage), layer, "after_m3")
        return self.add_norm(y, x, b_m3, self.gain(W.g_LN2, layer, 1))

    def embed(self, batch: Batch) -> Tensor:
        weights = self.base.embeddings
        # The gradient of the word table is sparse, since a batch reads few of its rows. Not on a GPU: summing it would
        # wait for the device.
        sparse = weights.word.requires_grad and weights.word.device.type == "cpu"
        word = F.embedding(batch.word, weights.word, sparse=sparse).to(self.base.dtype)
        position = F.embedding(batch.position, weights.position)
        gain = Gain(weights.g_LN0, self.rows.g_LN0, self.gathered.gains)
        x = self.add_norm(word, position, weights.no_bias.expand(len(self.rows.shift), -1), gain)
        x = self.kernels.drop(x, self.stage)
        return x if weights.W_e is None else weights.W_e(x)

    def project(self, linear: Linear, x: Tensor, layer: int, site: str) -> Tensor:
        return self._add_branches(linear(x), x, layer, site)

    def activate(self, linear: Linear, x: Tensor, b: Tensor, layer: int) -> Tensor:
        """The activation of `project`, scaled, + b; one kernel if no row changes the map."""
        if (layer, "m2") in self.gathered.branches or "m2" in self.gathered.scales:
            z = self.scale(self.project(linear, x, layer, "m2"), layer, "m2")
            return self.kernels.add_activate(z, b, self.stage)
        return self.kernels.project_activate(linear, x, b, self.stage)

    def adapt(self, y: Tensor, layer: int, site: str) -> Tensor:
        """`y` plus the adapter of each token's row, applied to `y`; may overwrite `y`."""
        return self._add_branches(y, y, layer, site)

    def gain(self, shared: Tensor, layer: int, norm: int) -> Gain:
        return Gain(shared, self.rows.gain[:, layer, norm], self.gathered.gains)

    def add_norm(self, y: Tensor, x: Tensor, b: Tensor, gain: Gain) -> Tensor:
        """LayerNorm(y + x + b) without the LayerNorm's own bias; may overwrite `y`."""
        return self.kernels.add_norm(y, x, b, self.stage, gain, self.base.config.eps)

    def scale_keys_and_values(self, qkv: Tensor, layer: int) -> Tensor:
        if not {"k", "v"} & self.gathered.scales.keys():
            return qkv
        q, k, v = qkv.split(self.base.config.hidden_size, dim=1)
        return torch.cat([q, self.scale(k, layer, "k"), self.scale(v, layer, "v")], dim=1)

    def scale(self, y: Tensor, layer: int, place: str) -> Tensor:
        """`y` [tokens, h or f] times the scales of the tokens' rows at one of `PLACES`."""
        index = self.gathered.scales.get(place)
        return y if index is None else y * self.rows.scales[place].table[:, layer].index_select(0, index)

    def drop_attention_output(self, y: Tensor) -> Tensor:
        return self.kernels.drop(y, self.stage) if self.base.anatomy.family.drops_attention_output else y

    def _add_branches(self, y: Tensor, x: Tensor, layer: int, site: str) -> Tensor:
        branches = self.gathered.branches.get((layer, site))
        return y if branches is None else self.kernels.add_branches(y, x, branches)


def encode(
    base: Base, rows: Rows, batch: Batch, dropout: Dropout = NO_DROPOUT, activations: Tensor | None = None
) -> Tensor:
    """Runs every sequence of a batch through the base with its own row.

    `activations` [tokens, h], end to end in the caller's order, enter a batch that starts above layer 0. Returns the
    last stage's [tokens, h], float32 from the one-call pass, else in the compute dtype; without the bias of the last
    LayerNorm, which `fold` has moved into the head.
    """
    forward = choose_forward(base, dropout)
    if forward is not None:
        return forward.encode(rows, batch, activations)
    return run_passes(passes_of(base, rows, batch, choose_kernels(base, dropout)), batch, activations)


def passes_of(base: Base, rows: Rows, batch: Batch, kernels: Kernels) -> Sequence[Pass]:
    """One pass per stage of a batch."""
    return [Pass(base, rows, stage, Gathered.of(rows, stage, kernels), kernels) for stage in batch.stages]


def run_passes(passes: Sequence[Pass], batch: Batch, activations: Tensor | None = None) -> Tensor:
    """Computes `encode` with existing passes."""
    x = passes[0].embed(batch) if activations is None else activations
    for one in passes:
        if one.stage.source is not None:
            x = x[one.stage.source]
        for layer in one.stage.layers:
            x = one.layer(layer, x)
    return x
