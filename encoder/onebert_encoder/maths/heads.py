"""Pooling and classifiers: each sequence's own head, of any pooling and number of labels, in one batch."""

import math
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.layout.upload import Array, upload
from onebert_encoder.maths.batch import Batch
from onebert_encoder.maths.gpu_heads import GpuHeads
from onebert_encoder.maths.rows import Dense, Head
from onebert_store.file.manifest import SIAMESE, Activation

# While the copies have at most this many numbers, the classifier's weight is copied per sequence for one batched
# product; beyond (many labels, many sequences) each task has its own product.
_STACKED_NUMBERS = 2**22

ACTIVATIONS: Mapping[Activation, Callable[[Tensor], Tensor]] = {"tanh": torch.tanh, "gelu": F.gelu, "relu": F.relu}

# Weight of the two texts' own vectors in `compare`: the order of two sentences tells little in most tasks, but these
# vectors are half of the numbers.
ALONE = 0.3


def classify(
    heads: Sequence[Head],
    batch: Batch,
    x: Tensor,
    eps: float,
    fast: type[GpuHeads] | None = None,
    inputs: Sequence[int] | None = None,
) -> list[Tensor]:
    """Float32 logits of the inputs of a batch: [labels], or [length, labels] if the head reads every token.

    Args:
        heads: the head of each sequence, in the caller's order.
        x: [tokens, h] from `encode`.
        eps: of the base's and the heads' LayerNorms.
        inputs: first sequence of each wanted input; None is all inputs.
    """
    inputs = batch.inputs if inputs is None else inputs
    per_token = [i for i in inputs if heads[i].pooling == "none"]
    pairs = [i for i in inputs if heads[i].pooling == SIAMESE]
    pooled = [i for i in inputs if heads[i].pooling not in ("none", SIAMESE)]
    logits: dict[int, Tensor] = {}
    if per_token:
        logits |= zip(per_token, _classify_tokens(heads, batch, x, per_token, eps), strict=True)
    if pairs:
        logits |= zip(pairs, _classify_pairs(heads, batch, x, pairs), strict=True)
    if pooled:
        pooled_heads, spans = [heads[i] for i in pooled], (batch.first[pooled], batch.lengths[pooled])
        logits |= zip(pooled, _classify_sequences(pooled_heads, *spans, x, batch.apart, eps, fast), strict=True)
    return [logits[i] for i in inputs]


def _classify_tokens(
    heads: Sequence[Head], batch: Batch, x: Tensor, chosen: Sequence[int], eps: float
) -> Iterator[Tensor]:
    """Logits [length, labels] of each chosen sequence: one gather for all, one product per task."""
    tasks = [[chosen[i] for i in members] for members in _groups((id(heads[i]) for i in chosen), batch.apart)]
    order = [i for members in tasks for i in members]
    lengths = batch.lengths[order]
    counts = dict(zip(order, lengths.tolist(), strict=True))
    tokens = x[_index(_token_indices(batch.first[order], lengths), x)].float()
    logits: dict[int, Tensor] = {}
    shares = torch.split(tokens, [sum(counts[i] for i in members) for members in tasks])
    for members, share in zip(tasks, shares, strict=True):
        head, out = heads[members[0]], share
        for layer in head.dense:
            out = _activated(layer, F.linear(out, layer.weight, layer.bias), eps)
        out = F.linear(out, head.weight, head.bias)
        logits |= zip(members, torch.split(out, [counts[i] for i in members]), strict=True)
    return (logits[i] for i in chosen)


def _classify_sequences(
    heads: Sequence[Head], first: Array, lengths: Array, x: Tensor, apart: bool, eps: float, fast: type[GpuHeads] | None
) -> list[Tensor]:
    on_gpu = None if fast is None else fast(heads, first, lengths, x.device)
    mean = [head.pooling == "mean" for head in heads]
    pooled = pool(first, lengths, x, mean) if on_gpu is None else on_gpu.pool(x)
    for depth in range(max(len(head.dense) for head in heads)):
        pooled = _layer(heads, pooled, depth, apart, eps)
    if on_gpu is not None and all(head.is_contiguous for head in heads):
        return on_gpu.classify(pooled)
    return _by_labels(heads, pooled, apart)


def _by_labels(heads: Sequence[Head], read: Tensor, apart: bool) -> list[Tensor]:
    """Logits [labels] of the classifiers' inputs `read` [inputs, width]: one product per number of labels."""
    logits: list[Tensor] = [read] * len(heads)
    for members in _groups((len(head.bias) for head in heads), apart):
        for i, row in zip(members, _linear([heads[i] for i in members], read[_index(members, read)]), strict=True):
            logits[i] = row
    return logits


def _classify_pairs(heads: Sequence[Head], batch: Batch, x: Tensor, chosen: Sequence[int]) -> list[Tensor]:
    pair_heads, both = [heads[i] for i in chosen], [*chosen, *(i + 1 for i in chosen)]
    means = pool(batch.first[both], batch.lengths[both], x, [True] * len(both))
    shift = torch.stack([head.shift for head in pair_heads if head.shift is not None])
    gains = [head.gain for head in pair_heads if head.gain is not None]
    gain = torch.stack(gains) if gains else 1
    u, v = (half * gain + shift for half in means.split(len(pair_heads)))
    return _by_labels(pair_heads, compare(u, v), batch.apart)


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


def pool(first: Array, lengths: Array, x: Tensor, mean: Sequence[bool]) -> Tensor:
    """[sequences, h] float32: the mean over a sequence's tokens if `mean`, else its first token."""
    if not any(mean):
        return x[_index(first, x)].float()
    starts = np.cumsum(lengths) - lengths
    tokens = _token_indices(first, lengths)
    arrays = {"tokens": tokens, "starts": starts, "first": first, "mean": np.array(mean)[:, None]}
    on_device = upload(arrays, x.device)
    # `embedding_bag` gathers while it sums: a tenth of the time of a gather and a segment sum, backward a fifteenth.
    means = F.embedding_bag(on_device["tokens"], x.float(), on_device["starts"], mode="mean")
    return means if all(mean) else torch.where(on_device["mean"], means, x[on_device["first"]].float())


def _token_indices(first: Array, lengths: Array) -> Array:
    before = np.cumsum(lengths) - lengths
    return np.asarray(np.arange(lengths.sum()) + np.repeat(first - before, lengths))


def _index(positions: Array | Sequence[int], x: Tensor) -> Tensor:
    return upload({0: np.asarray(positions, dtype=np.int64)}, x.device)[0]


def _layer(heads: Sequence[Head], pooled: Tensor, depth: int, apart: bool, eps: float) -> Tensor:
    """Applies the `depth`-th layer to the sequences that have one; a shared pooler runs once for all of them."""
    out = pooled.clone()
    having = [i for i, head in enumerate(heads) if len(head.dense) > depth]
    for members in _groups((id(heads[i].dense[depth].weight) for i in having), apart):
        chosen = [having[i] for i in members]
        layer, index = heads[chosen[0]].dense[depth], _index(chosen, pooled)
        bias = torch.stack([heads[i].dense[depth].bias for i in chosen])
        out[index] = _activated(layer, F.linear(pooled[index], layer.weight) + bias, eps)
    return out


def _activated(layer: Dense, x: Tensor, eps: float) -> Tensor:
    x = ACTIVATIONS[layer.activation](x)
    return x if layer.norm is None else F.layer_norm(x, layer.norm.shape, layer.norm, None, eps)


def _linear(heads: Sequence[Head], pooled: Tensor) -> Tensor:
    tasks = _groups(map(id, heads))
    if len(tasks) == 1:
        return F.linear(pooled, heads[0].weight, heads[0].bias)
    if len(heads) * heads[0].weight.numel() <= _STACKED_NUMBERS:
        weight = torch.stack([head.weight for head in heads])
        bias = torch.stack([head.bias for head in heads])
        return torch.baddbmm(bias[..., None], weight, pooled[..., None]).squeeze(-1)
    out = pooled.new_empty(len(heads), len(heads[0].bias))
    for members in tasks:
        head, index = heads[members[0]], _index(members, pooled)
        out[index] = F.linear(pooled[index], head.weight, head.bias)
    return out


def _groups(keys: Iterable[Hashable], apart: bool = False) -> list[list[int]]:
    """Positions with equal keys, grouped in order of first appearance; each position alone if `apart`."""
    groups: defaultdict[Hashable, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        groups[i if apart else key].append(i)
    return list(groups.values())
