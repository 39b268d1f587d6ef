"""The encoder's forward pass, for training and serving: shared weights, one gathered row per sequence.

This file drives the base's block from the embeddings up; `x` is [tokens, h] and lacks the biases that the block's
`fold_layer` has moved on. `kernels` compute everything between the matrix products.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.base.base import Base
from onebert_encoder.blocks.running import LayerPass
from onebert_encoder.compute.kernels.plain import Gain, PlainKernels
from onebert_encoder.layout.branches import LayerSite
from onebert_encoder.layout.dropout import NO_DROPOUT, Dropout
from onebert_encoder.layout.stage import Stage
from onebert_encoder.layout.upload import upload
from onebert_encoder.maths.batch import Batch
from onebert_encoder.maths.choose import choose_forward, choose_kernels
from onebert_encoder.maths.rows import Number, Rows


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
    def gather(cls, rows: Rows, stage: Stage, kernels: PlainKernels) -> "Gathered":
        of_token = stage.of_token(rows.numbers[:, Number.GAIN :])
        needed = dict(zip(("gains", *rows.scales), of_token, strict=True))
        used = upload({name: index for name, index in needed.items() if index is not None}, stage.row_of_token.device)
        return cls(used.pop("gains", None), used, kernels.join(rows.branches, stage))


@dataclass(frozen=True)
class Pass:
    """One stage of a forward pass: the data that its layers share."""

    base: Base
    rows: Rows
    stage: Stage
    gathered: Gathered
    kernels: PlainKernels

    def layer(self, layer: int, x: Tensor) -> Tensor:
        """[tokens, h] to [tokens, h], by the base's block, with the final LayerNorm behind the last layer."""
        base, rows, gathered = self.base, self.rows, self.gathered
        layer_pass = LayerPass(
            layer=layer,
            weights=base.layers[layer],
            stage=self.stage,
            kernels=self.kernels,
            shift=rows.shift[:, layer],
            gain=rows.gain[:, layer],
            gain_of_token=gathered.gains,
            scales={place: (rows.scales[place][:, layer], index) for place, index in gathered.scales.items()},
            branches=gathered.branches,
            num_heads=base.config.num_heads,
            eps=base.config.eps,
            row_scores=rows.scores,
            drops_attention_output=base.anatomy.family.drops_attention_output,
        )
        x = base.anatomy.block.encode_layer(layer_pass, x)
        if layer < base.config.num_layers - 1 or not base.anatomy.has_final_norm:
            return x
        return self.kernels.norm(x, Gain(x.new_ones(x.shape[1]), x, None), base.config.eps)

    def embed(self, batch: Batch) -> Tensor:
        weights = self.base.embeddings
        # The gradient of the word table is sparse, since a batch reads few of its rows. Not on a GPU: summing it would
        # wait for the device.
        sparse = weights.word.requires_grad and weights.word.device.type == "cpu"
        word = F.embedding(batch.word, weights.word, sparse=sparse).to(self.base.dtype)
        x = self.kernels.drop(self._normed(word, batch.position), self.stage)
        return x if weights.W_e is None else weights.W_e(x)

    def _normed(self, word: Tensor, position: Tensor) -> Tensor:
        weights, eps = self.base.embeddings, self.base.config.eps
        if not len(weights.g_LN0):
            return word
        gain = Gain(weights.g_LN0, self.rows.g_LN0, self.gathered.gains)
        if not len(weights.position):
            return self.kernels.norm(word, gain, eps)
        no_bias = weights.no_bias.expand(len(self.rows.shift), -1)
        return self.kernels.add_norm(word, F.embedding(position, weights.position), no_bias, self.stage, gain, eps)


def encode(
    base: Base, rows: Rows, batch: Batch, dropout: Dropout = NO_DROPOUT, activations: Tensor | None = None
) -> Tensor:
    """Runs every sequence of a batch through the base with its own row.

    `activations` [tokens, h], end to end in the caller's order, enter a batch that starts above layer 0. Returns the
    last stage's [tokens, h], float32 from the one-call pass, else in the compute dtype; without the bias of the last
    LayerNorm and the gain of a final one, which `fold` has moved into the head.
    """
    forward = choose_forward(base, dropout)
    if forward is not None:
        return forward.encode(rows, batch, activations)
    return run_passes(passes_of(base, rows, batch, choose_kernels(base, dropout)), batch, activations)


def passes_of(base: Base, rows: Rows, batch: Batch, kernels: PlainKernels) -> Sequence[Pass]:
    """One pass per stage of a batch."""
    return [Pass(base, rows, stage, Gathered.gather(rows, stage, kernels), kernels) for stage in batch.stages]


def run_passes(passes: Sequence[Pass], batch: Batch, activations: Tensor | None = None) -> Tensor:
    """Computes `encode` with existing passes."""
    x = passes[0].embed(batch) if activations is None else activations
    for each in passes:
        if each.stage.source is not None:
            x = x[each.stage.source]
        for layer in each.stage.layers:
            x = each.layer(layer, x)
    return x
