"""Pooling and classifiers: each sequence's own head, of any pooling and number of labels, in one batch."""

import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.layout.upload import Array, upload
from onebert_encoder.maths.batch import Batch
from onebert_encoder.maths.flat import Flat, ranges, shapes_of
from onebert_encoder.maths.gpu_heads import GpuHeads
from onebert_encoder.maths.rows import POOLED, Dense, Heads, Number
from onebert_store.file.manifest import SIAMESE, Activation

# While the copies have at most this many numbers, the classifier's weight is copied per sequence for one batched
# product; beyond (many labels, many sequences) each task has its own product.
_STACKED_NUMBERS = 2**22

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "gelu": F.gelu, "relu": F.relu}

# Weight of the two texts' own vectors in `compare`: the order of two sentences tells little in most tasks, but these
# vectors are half of the numbers.
ALONE = 0.3


_Part = tuple[Array, Tensor]
"""Positions of some inputs, and their logits in the same order, of any shape."""


def classify(
    heads: Heads, batch: Batch, x: Tensor, eps: float, fast: type[GpuHeads] | None = None, inputs: Array | None = None
) -> Flat:
    """Logits of the inputs of a batch.

    Args:
        x: [tokens, h] from `encode`.
        eps: of the base's and the heads' LayerNorms.
        inputs: first sequence of each wanted input; None is all inputs.
    """
    inputs = batch.inputs if inputs is None else inputs
    pooled = heads.pooled[inputs]
    per_token, pairs = pooled == POOLED["none"], pooled == POOLED[SIAMESE]
    parts: list[_Part] = []
    for chosen, classified in (
        (per_token, partial(_classify_tokens, eps=eps)),
        (pairs, _classify_pairs),
        (~(per_token | pairs), partial(_classify_sequences, eps=eps, fast=fast)),
    ):
        (positions,) = chosen.nonzero()
        if len(positions):
            of_kind = classified(heads, batch, x, inputs[positions])
            parts += [(positions[members], logits) for members, logits in of_kind]
    sizes, lengths = shapes_of(heads, batch, inputs)
    return Flat(_in_order(parts, sizes), sizes, lengths)


def _in_order(parts: Sequence[_Part], sizes: Array) -> Tensor:
    order = np.concatenate([members for members, _ in parts])
    flat = [logits.reshape(-1) for _, logits in parts]
    values = flat[0] if len(flat) == 1 else torch.cat(flat)
    if (order[1:] > order[:-1]).all():
        return values
    starts = np.empty_like(order)
    starts[order] = np.cumsum(sizes[order]) - sizes[order]
    return values[_index(ranges(starts, sizes), values)]


def _classify_tokens(heads: Heads, batch: Batch, x: Tensor, chosen: Array, eps: float) -> list[_Part]:
    """Logits [tokens, labels] of the chosen sequences: one gather for all, one product per task."""
    tasks = _groups(heads.rows[chosen], batch.apart)
    order = chosen[np.concatenate(tasks)]
    tokens = x[_index(ranges(batch.first[order], batch.lengths[order]), x)].float()
    parts: list[_Part] = []
    shares = torch.split(tokens, [int(batch.lengths[chosen[members]].sum()) for members in tasks])
    first = chosen[[members[0] for members in tasks]]
    for members, head, share in zip(tasks, heads[first], shares, strict=True):
        out = share
        for layer in head.dense:
            out = _activated(layer, F.linear(out, layer.weight, layer.bias), eps)
        parts.append((members, F.linear(out, head.weight, head.bias)))
    return parts


def _classify_sequences(
    heads: Heads, batch: Batch, x: Tensor, chosen: Array, eps: float, fast: type[GpuHeads] | None
) -> list[_Part]:
    heads, first, lengths = heads[chosen], batch.first[chosen], batch.lengths[chosen]
    on_gpu = None if fast is None else fast(heads, first, lengths, x.device)
    pooled = pool(first, lengths, x, heads.pooled == POOLED["mean"]) if on_gpu is None else on_gpu.pool(x)
    for depth in range(heads.numbers[:, Number.LAYERS].max()):
        pooled = _layer(heads, pooled, depth, batch.apart, eps)
    if on_gpu is not None and heads.numbers[:, Number.CONTIGUOUS].all():
        return [(np.arange(len(chosen)), on_gpu.classify(pooled))]
    return _by_labels(heads, pooled, batch.apart)


def _by_labels(heads: Heads, read: Tensor, apart: bool) -> list[_Part]:
    """Logits [inputs, labels] of the classifiers' inputs `read` [inputs, width]: one product per number of labels."""
    groups = _groups(heads.labels, apart)
    return [(members, _linear(heads[members], read[_index(members, read)])) for members in groups]


def _classify_pairs(heads: Heads, batch: Batch, x: Tensor, chosen: Array) -> list[_Part]:
    both, each = np.concatenate([chosen, chosen + 1]), list(heads[chosen])
    means = pool(batch.first[both], batch.lengths[both], x, np.ones(len(both), dtype=bool))
    shift = torch.stack([head.shift for head in each if head.shift is not None])
    gains = [head.gain for head in each if head.gain is not None]
    gain = torch.stack(gains) if gains else 1
    u, v = (half * gain + shift for half in means.split(len(chosen)))
    return _by_labels(heads[chosen], compare(u, v), batch.apart)


def compare(u: Tensor, v: Tensor) -> Tensor:
    """A siamese head's features [pairs, 4h + 1] of the mean vectors u and v [pairs, h] of two texts, float32.

    Sentence-BERT's u, v and |u - v| (Reimers and Gurevych 2019, section 3), the products u * v and their sum, the
    cosine, all of vectors of length 1. Their scales make a penalized head use the cosine first and the texts' own
    vectors last.
    """
    u, v = F.normalize(u, dim=1), F.normalize(v, dim=1)
    product = u * v
    parts = (ALONE * u, ALONE * v, (u - v).abs(), product, product.sum(dim=1, keepdim=True))
    return torch.cat(parts, dim=1) * math.sqrt(u.shape[1])


def pool(first: Array, lengths: Array, x: Tensor, mean: Array) -> Tensor:
    """[sequences, h] float32: the mean over a sequence's tokens if `mean`, else its first token."""
    if not mean.any():
        return x[_index(first, x)].float()
    starts = np.cumsum(lengths) - lengths
    arrays = {"tokens": ranges(first, lengths), "starts": starts, "first": first, "mean": mean[:, None]}
    on_device = upload(arrays, x.device)
    # `embedding_bag` gathers while it sums: a tenth of the time of a gather and a segment sum, backward a fifteenth.
    means = F.embedding_bag(on_device["tokens"], x.float(), on_device["starts"], mode="mean")
    return means if mean.all() else torch.where(on_device["mean"], means, x[on_device["first"]].float())


def _index(positions: Array, x: Tensor) -> Tensor:
    return upload({0: positions}, x.device)[0]


def _layer(heads: Heads, pooled: Tensor, depth: int, apart: bool, eps: float) -> Tensor:
    """Applies the `depth`-th layer to the sequences that have one; a shared pooler runs once for all of them."""
    out = pooled.clone()
    (having,) = (heads.numbers[:, Number.LAYERS] > depth).nonzero()
    layers_of = [head.dense[depth] for head in heads[having]]
    for members in _groups(np.array([id(layer.weight) for layer in layers_of]), apart):
        layers = [layers_of[i] for i in members.tolist()]
        layer, index = layers[0], _index(having[members], pooled)
        bias = torch.stack([layer.bias for layer in layers])
        out[index] = _activated(layer, F.linear(pooled[index], layer.weight) + bias, eps)
    return out


def _activated(layer: Dense, x: Tensor, eps: float) -> Tensor:
    x = ACTIVATIONS[layer.activation](x)
    return x if layer.norm is None else F.layer_norm(x, layer.norm.shape, layer.norm, None, eps)


def _linear(heads: Heads, pooled: Tensor) -> Tensor:
    tasks, each = _groups(heads.rows), list(heads)
    if len(tasks) == 1:
        return F.linear(pooled, each[0].weight, each[0].bias)
    if len(each) * each[0].weight.numel() <= _STACKED_NUMBERS:
        weight = torch.stack([head.weight for head in each])
        bias = torch.stack([head.bias for head in each])
        return torch.baddbmm(bias[..., None], weight, pooled[..., None]).squeeze(-1)
    out = pooled.new_empty(len(each), len(each[0].bias))
    for members in tasks:
        head, index = each[members[0]], _index(members, pooled)
        out[index] = F.linear(pooled[index], head.weight, head.bias)
    return out


def _groups(keys: Array, apart: bool = False) -> list[Array]:
    """Positions with equal keys, grouped in order of first appearance; each position alone if `apart`."""
    positions = np.arange(len(keys))
    if apart:
        return np.split(positions, positions[1:])
    _, first, key = np.unique(keys, return_index=True, return_inverse=True)
    order = np.argsort(first[key], kind="stable")
    return np.split(order, np.flatnonzero(np.diff(first[key][order])) + 1)
