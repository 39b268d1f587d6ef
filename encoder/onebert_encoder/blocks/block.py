"""The seam between an encoder and one kind of layer; `BLOCKS` has every kind, by the name that families use."""

from collections.abc import Mapping
from typing import Protocol

from torch import Tensor

from onebert_encoder.blocks.folding import FoldedLayer, LayerFolding
from onebert_encoder.blocks.post_norm import PostNorm
from onebert_encoder.blocks.pre_norm import PreNorm
from onebert_encoder.blocks.running import LayerPass


class Block(Protocol):
    """A kind of layer: `products`, maps computed side by side, by site of their branches; `norms` in a row's order."""

    @property
    def products(self) -> Mapping[str, tuple[str, ...]]: ...
    @property
    def norms(self) -> tuple[str, ...]: ...

    def shapes(self, hidden: int, intermediate: int) -> Mapping[str, tuple[int, ...]]:
        """The shape of each parameter of a layer, by its symbol; every weight is [out, in]."""

    def fold_layer(self, layer: LayerFolding, prev: Tensor) -> FoldedLayer:
        """Folds one layer of a task; `prev` [h] is the bias that the layer's input lacks."""

    def encode_layer(self, layer: LayerPass, x: Tensor) -> Tensor:
        """[tokens, h] to [tokens, h], both without the biases that `fold_layer` has moved on."""


BLOCKS: Mapping[str, Block] = {
    "post_norm": PostNorm(),
    "turned_post_norm": PostNorm(turned=True),
    "gated_post_norm": PostNorm(gated=True, turned=True),
    "gated_pre_norm": PreNorm(gated=True, turned=True),
}
