"""Pooling and classifiers: every sequence's own head, whatever its label count, in one batch."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.batch import Batch
from onebert_encoder.fold import Head

# Up to so many numbers a weight is copied for every sequence, which makes one product of many small ones; beyond it
# (many labels, many sequences) each task has its own product.
_STACKED_NUMBERS = 2**22


def classify(heads: Sequence[Head], batch: Batch, x: Tensor) -> list[Tensor]:
    """Logits of every sequence, float32.

    Args:
        heads: the head of each sequence, in the caller's order.
        batch: what `x` was encoded from.
        x: [tokens, h] from `encode`.

    Returns:
        One [labels] tensor per sequence, in the caller's order.
    """
    pooled = pool(batch, x, [head.pooling == "mean" for head in heads])
    for depth in range(max(len(head.dense) for head in heads)):
        pooled = _tanh_layer(heads, pooled, depth)
    logits: list[Tensor] = [pooled] * len(heads)
    for members in _groups(len(head.bias) for head in heads):
        for i, row in zip(members, _linear([heads[i] for i in members], pooled[members]), strict=True):
            logits[i] = row
    return logits


def pool(batch: Batch, x: Tensor, mean: Sequence[bool]) -> Tensor:
    """[sequences, h] float32: the mean over a sequence's tokens where asked, else its first token."""
    if not any(mean):
        return x[batch.first].float()
    lengths = batch.lengths
    ends = lengths.cumsum(0)
    within = torch.arange(int(ends[-1]), device=x.device) - (ends - lengths).repeat_interleave(lengths)
    spans = x[batch.first.repeat_interleave(lengths) + within].float()
    means = torch.segment_reduce(spans, "mean", lengths=lengths, axis=0, unsafe=True)
    if all(mean):
        return means
    return torch.where(torch.tensor(mean, device=x.device)[:, None], means, x[batch.first].float())


def _tanh_layer(heads: Sequence[Head], pooled: Tensor, depth: int) -> Tensor:
    """Applies the `depth`-th tanh layer to the sequences that have one; a shared pooler runs once for all of them."""
    out = pooled.clone()
    having = [i for i, head in enumerate(heads) if len(head.dense) > depth]
    for members in _groups(id(heads[i].dense[depth][0]) for i in having):
        chosen = [having[i] for i in members]
        weight = heads[chosen[0]].dense[depth][0]
        bias = torch.stack([heads[i].dense[depth][1] for i in chosen])
        out[chosen] = torch.tanh(F.linear(pooled[chosen], weight) + bias)
    return out


def _linear(heads: Sequence[Head], pooled: Tensor) -> Tensor:
    """Classifiers with one label count: [sequences, h] -> [sequences, labels]."""
    tasks = _groups(map(id, heads))
    if len(tasks) == 1:
        return F.linear(pooled, heads[0].weight, heads[0].bias)
    if len(heads) * heads[0].weight.numel() <= _STACKED_NUMBERS:
        weight = torch.stack([head.weight for head in heads])
        bias = torch.stack([head.bias for head in heads])
        return torch.baddbmm(bias[..., None], weight, pooled[..., None]).squeeze(-1)
    out = pooled.new_empty(len(heads), len(heads[0].bias))
    for members in tasks:
        head = heads[members[0]]
        out[members] = F.linear(pooled[members], head.weight, head.bias)
    return out


def _groups(keys: Iterable[Hashable]) -> list[list[int]]:
    """Positions that share a key, in order of first appearance."""
    found: defaultdict[Hashable, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        found[key].append(i)
    return list(found.values())
