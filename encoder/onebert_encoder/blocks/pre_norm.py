"""The layer of ModernBERT: a LayerNorm without bias in front of attention and MLP, each with a residual around both.

A bias of the residual stream stays in it: the LayerNorms of all later layers read it, and they are not linear. So a row
adds β and b_m3 where they are (sublayers.py), and the inputs of both sublayers lack nothing.
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from onebert_encoder.blocks.folding import FoldedLayer, LayerFolding
from onebert_encoder.blocks.running import LayerPass
from onebert_encoder.blocks.sublayers import Sublayers


class PreNorm(Sublayers):
    """A layer of the residual stream `x`, which `encode` normalizes behind the last layer."""

    def shapes(self, hidden: int, intermediate: int) -> Mapping[str, tuple[int, ...]]:
        return self.shapes_with("g", hidden, intermediate)

    def fold_layer(self, layer: LayerFolding, prev: Tensor) -> FoldedLayer:
        vectors, branches = self.fold(layer, None, None)
        return FoldedLayer(torch.cat(vectors), branches, prev)

    def encode_layer(self, layer: LayerPass, x: Tensor) -> Tensor:
        b = self.vectors(layer, x.shape[1])
        x = layer.add(self.attend(layer, layer.norm("LN1", x), b.attention), x, b.m1)
        return layer.add(self.transform(layer, layer.norm("LN2", x), b.inner), x, b.m3)
