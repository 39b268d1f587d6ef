"""Pooling and classifiers: every sequence's own head, whatever it reads and how many labels it has, in one batch."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.batch import Batch
from onebert_encoder.rows import Head

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
        One tensor per sequence, in the caller's order: [labels], or [length, labels] where the head reads every token.
    """
    per_token = [i for i, head in enumerate(heads) if head.pooling == "none"]
    if not per_token:
        return _classify_sequences(heads, batch.first, batch.lengths, x, batch.apart)
    logits = dict(zip(per_token, _classify_tokens(heads, batch, x, per_token), strict=True))
    pooled = [i for i, head in enumerate(heads) if head.pooling != "none"]
    if pooled:
        own, spans = [heads[i] for i in pooled], (batch.first[pooled], batch.lengths[pooled])
        logits |= zip(pooled, _classify_sequences(own, *spans, x, batch.apart), strict=True)
    return [logits[i] for i in range(len(heads))]


def _classify_tokens(heads: Sequence[Head], batch: Batch, x: Tensor, chosen: Sequence[int]) -> Iterator[Tensor]:
    """[length, labels] of each chosen sequence: one gather for all, one product for each task."""
    tasks = [[chosen[i] for i in members] for members in _groups((id(heads[i]) for i in chosen), batch.apart)]
    order = [i for members in tasks for i in members]
    lengths = batch.lengths[order]
    counts = dict(zip(order, lengths.tolist(), strict=True))
    tokens = x[_places(batch.first[order], lengths)].float()
    logits: dict[int, Tensor] = {}
    shares = torch.split(tokens, [sum(counts[i] for i in members) for members in tasks])
    for members, share in zip(tasks, shares, strict=True):
        head, out = heads[members[0]], share
        for weight, bias in head.dense:
            out = torch.tanh(F.linear(out, weight, bias))
        out = F.linear(out, head.weight, head.bias)
        logits |= zip(members, torch.split(out, [counts[i] for i in members]), strict=True)
    return (logits[i] for i in chosen)


def _classify_sequences(heads: Sequence[Head], first: Tensor, lengths: Tensor, x: Tensor, apart: bool) -> list[Tensor]:
    """[labels] of each sequence, from its pooled vector."""
    pooled = pool(first, lengths, x, [head.pooling == "mean" for head in heads])
    for depth in range(max(len(head.dense) for head in heads)):
        pooled = _tanh_layer(heads, pooled, depth, apart)
    logits: list[Tensor] = [pooled] * len(heads)
    for members in _groups((len(head.bias) for head in heads), apart):
        for i, row in zip(members, _linear([heads[i] for i in members], pooled[members]), strict=True):
            logits[i] = row
    return logits


def pool(first: Tensor, lengths: Tensor, x: Tensor, mean: Sequence[bool]) -> Tensor:
    """[sequences, h] float32: the mean over a sequence's tokens where asked, else its first token."""
    if not any(mean):
        return x[first].float()
    # Its sum gathers as it goes: a tenth of the time of a gather and a segment sum, and of their gradients a fifteenth.
    starts = lengths.cumsum(0) - lengths
    means = F.embedding_bag(_places(first, lengths), x.float(), starts, mode="mean")
    if all(mean):
        return means
    return torch.where(torch.tensor(mean, device=x.device)[:, None], means, x[first].float())


def _places(first: Tensor, lengths: Tensor) -> Tensor:
    """Where the tokens of some sequences lie, sequence by sequence: [the sum of their lengths]."""
    ends = lengths.cumsum(0)
    within = torch.arange(int(ends[-1]), device=first.device) - (ends - lengths).repeat_interleave(lengths)
    return first.repeat_interleave(lengths) + within


def _tanh_layer(heads: Sequence[Head], pooled: Tensor, depth: int, apart: bool) -> Tensor:
    """Applies the `depth`-th tanh layer to the sequences that have one; a shared pooler runs once for all of them."""
    out = pooled.clone()
    having = [i for i, head in enumerate(heads) if len(head.dense) > depth]
    for members in _groups((id(heads[i].dense[depth][0]) for i in having), apart):
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


def _groups(keys: Iterable[Hashable], apart: bool = False) -> list[list[int]]:
    """Positions that share a key, in order of first appearance; each position alone where they shall stay apart."""
    found: defaultdict[Hashable, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        found[i if apart else key].append(i)
    return list(found.values())
