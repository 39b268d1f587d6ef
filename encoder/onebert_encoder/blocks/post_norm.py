"""The layer of BERT: attention and MLP, each with a residual and a LayerNorm behind it.

Activations between layers are kept without the bias of the LayerNorm that made them; `prev` is that missing bias. With
the biases of sublayers.py:

    X     = prev                                  of the attention
    b_m1' = β + prev
    X     = b_LN1                                 of the MLP
    b_m3' = b_m3 + b_LN1
    prev  = b_LN2                                 the last layer's goes into the head
"""

from collections.abc import Mapping

import torch
from torch import Tensor

from onebert_encoder.blocks.folding import FoldedLayer, LayerFolding
from onebert_encoder.blocks.running import LayerPass
from onebert_encoder.blocks.sublayers import Sublayers


class PostNorm(Sublayers):
    """BERT's layer; `Forward` (maths/forward.py) is the native program of this layer and of `PreNorm`."""

    def shapes(self, hidden: int, intermediate: int) -> Mapping[str, tuple[int, ...]]:
        return self.shapes_with("bg", hidden, intermediate)

    def fold_layer(self, layer: LayerFolding, prev: Tensor) -> FoldedLayer:
        b_LN1 = layer.param("b_LN1")
        b, branches = self.fold(layer, prev, b_LN1)
        shift = torch.cat([b.attention, b.m1 + prev, b.m3 + b_LN1, b.inner])
        return FoldedLayer(shift, branches, layer.param("b_LN2"))

    def encode_layer(self, layer: LayerPass, x: Tensor) -> Tensor:
        """BitFit's equations 1 to 5, with folded vectors instead of the eight biases."""
        b = self.vectors(layer, x.shape[1])
        x = layer.add_norm("LN1", self.attend(layer, x, b.attention), x, b.m1)
        return layer.add_norm("LN2", self.transform(layer, x, b.inner), x, b.m3)
