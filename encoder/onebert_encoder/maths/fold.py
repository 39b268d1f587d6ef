"""Folding: a task's bias differences moved through the network into the few vectors that `encode` adds.

This file drives the block of each layer, from the embeddings up to the head; the algebra of a layer is the block's
(blocks/post_norm.py for BERT).
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from onebert_encoder.base.base import Base
from onebert_encoder.blocks.folding import LayerFolding, Maps
from onebert_encoder.blocks.scores import scores_of
from onebert_encoder.layout.branches import Branch, LayerSite
from onebert_encoder.maths.rows import Defaults, Dense, Head, Row
from onebert_store.file import delta
from onebert_store.file.manifest import SIAMESE, Activation


@torch.no_grad()
def fold_delta(base: Base, task: delta.Delta) -> Row:
    """Folds a delta that was checked against the base, without gradients."""
    return fold(base, to_tensors(task, base), task.manifest.pooling, task.manifest.activation)


def to_tensors(task: delta.Delta, base: Base) -> dict[str, Tensor]:
    """A delta's tensors on the base's device, by their names in the file: float32, indices as int64."""
    kinds = {name: "int64" if name.startswith(delta.SPARSE_INDEX) else "float32" for name in task.tensors}
    return {name: torch.from_numpy(task.tensors[name].astype(kind)).to(base.device) for name, kind in kinds.items()}


def fold(base: Base, tensors: Mapping[str, Tensor], pooling: str = "mean", activation: Activation = "tanh") -> Row:
    """Folds one task; differentiable in every tensor, exact up to float32 rounding.

    `tensors` are named as in the delta file; without `head.weight` the row has no head, and `activation` is its
    own layer's.
    """
    anatomy = base.anatomy

    def at(layer: int | None, maps: Maps | None = None) -> LayerFolding:
        return LayerFolding(base.params, tensors, partial(anatomy.name, layer=layer), base.subspaces.directions, maps)

    # In float32 the packed weights are as exact as `params`, whose pages stay out of memory.
    exact = base.precision == torch.float32
    own_maps = [Maps(weights.W, anatomy.block.products) if exact else None for weights in base.layers]
    outside, layers = at(None), [at(layer, maps) for layer, maps in enumerate(own_maps)]
    # The embeddings of a pre-norm base lack no bias.
    prev = torch.zeros(1, device=base.device) if anatomy.has_final_norm else outside.param("b_LN0")
    if anatomy.has_projection:
        prev = outside.param("b_e") + outside.weight("e") @ prev
    shifts = []
    branches: dict[LayerSite, tuple[Branch, ...]] = {}
    for layer, folding in enumerate(layers):
        shift, sites, prev = anatomy.block.fold_layer(folding, prev)
        shifts.append(shift)
        branches |= {(layer, site): joined for site, joined in sites.items()}
    gains = [each.name for each in anatomy.parameters if each.symbol[0] == "g" and each.symbol != "g_LNf"]
    g_LN0 = gain = None
    if any(delta.DELTA + name in tensors for name in gains):
        norms = anatomy.block.norms
        g_LN0 = outside.param("g_LN0") if "LN0" in anatomy.family.outside else Defaults.for_base(base).g_LN0
        gain = torch.stack([torch.stack([folding.param(f"g_{norm}") for norm in norms]) for folding in layers])
    last = Last(outside.param("g_LNf"), outside.param("b_LNf")) if anatomy.has_final_norm else Last(None, prev)
    head = _head(tensors, outside, pooling, activation, last)
    scores = scores_of(anatomy.family.scores).fold(base.config, outside, layers)
    return Row(torch.stack(shifts), g_LN0, gain, _scales(base, layers), branches, scores, head)


def fold_bare(base: Base) -> Row:
    """The row of the bare base; its head, if it makes vectors, answers with the pooled vector as it is."""
    if isinstance(base.vectors, str):
        return fold(base, {})
    width = base.config.hidden_size
    same = torch.eye(width, device=base.device), torch.zeros(width, device=base.device)
    return fold(base, dict(zip((delta.HEAD_WEIGHT, delta.HEAD_BIAS), same, strict=True)), base.vectors.pooling)


def expand_cores(base: Base, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Replaces `lora_xs.*`, which PEFT lacks, by `lora_A.*` and `lora_B.*`; differentiable."""
    expanded = {name: tensor for name, tensor in tensors.items() if not name.startswith(delta.LORA_XS)}
    for name in tensors.keys() - expanded.keys():
        module, R = name.removeprefix(delta.LORA_XS), tensors[name]
        US, Vt = base.subspaces.factors(module, len(R))
        a, b = delta.LORA_A + module, delta.LORA_B + module
        expanded[a] = torch.cat([expanded[a], Vt]) if a in expanded else Vt
        expanded[b] = torch.cat([expanded[b], US @ R], dim=1) if b in expanded else US @ R
    return expanded


def _scales(base: Base, layers: Sequence[LayerFolding]) -> dict[str, Tensor]:
    places = {}
    for place, width in base.anatomy.places.items():
        scales = [layer.scale(place) for layer in layers]
        if any(scale is not None for scale in scales):
            ones = torch.ones(width, device=base.device)
            places[place] = torch.stack([ones if scale is None else scale for scale in scales])
    return places


class Last(NamedTuple):
    """The gain [h] of the final LayerNorm, if there is one, and the missing bias [h] of the last LayerNorm."""

    gain: Tensor | None
    shift: Tensor

    def moved(self, weight: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        """Moves both into a map that reads the LayerNorm's numbers; without a gain the weight is the same tensor."""
        return weight if self.gain is None else weight * self.gain, bias + weight @ self.shift


def _head(
    tensors: Mapping[str, Tensor], outside: LayerFolding, pooling: str, activation: Activation, last: Last
) -> Head | None:
    """The head, with gain and bias of the last LayerNorm moved into its first map; None for the bare encoder."""
    if delta.HEAD_WEIGHT not in tensors:
        return None
    weight, bias = tensors[delta.HEAD_WEIGHT], tensors[delta.HEAD_BIAS]
    if pooling == SIAMESE:
        # Normalization and absolute differences are not linear, so nothing can be moved through them.
        return Head(pooling, (), weight, bias, last.shift, last.gain)
    layers = []
    if pooling == "pooler":
        layers.append(Dense(outside.weight("p"), outside.param("b_p")))
    if delta.HEAD_DENSE_WEIGHT in tensors:
        dense = tensors[delta.HEAD_DENSE_WEIGHT], tensors[delta.HEAD_DENSE_BIAS]
        layers.append(Dense(*dense, activation, tensors.get(delta.HEAD_NORM)))
    if not layers:
        return Head(pooling, (), *last.moved(weight, bias))
    first_weight, first_bias = last.moved(*layers[0][:2])
    layers[0] = layers[0]._replace(weight=first_weight, bias=first_bias)
    return Head(pooling, tuple(layers), weight, bias)
