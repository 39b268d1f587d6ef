"""Pooling and classifiers: every sequence's own head, whatever it reads and how many labels it has, in one batch."""

from collections import defaultdict
from collections.abc import Hashable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.layout.upload import Array, upload
from onebert_encoder.maths.batch import Batch
from onebert_encoder.maths.rows import Head

# While the copies have at most this many numbers in all, the classifier's weight is copied for every sequence, so that
# one batched product computes all; beyond (many labels, many sequences) each task has its own product.
_STACKED_NUMBERS = 2**22


class HeadKernels(Protocol):
    """Pooling and classifiers faster than PyTorch's operations, without gradients, for any mix of tasks."""

    def prepare(self, heads: Sequence[Head], first: Array, lengths: Array, device: torch.device) -> Any:
        """What the methods below read of a batch, uploaded at once; `first` and `lengths` as for `pool` below."""
        ...

    def pool(self, reading: Any, x: Tensor) -> Tensor:
        """The same as the function `pool`, for the heads that were prepared."""
        ...

    def classify(self, reading: Any, pooled: Tensor) -> list[Tensor]:
        """Logits [labels] of each sequence by its own head, whose matrices are contiguous; `pooled` [sequences, h]."""
        ...


def classify(heads: Sequence[Head], batch: Batch, x: Tensor, fast: HeadKernels | None = None) -> list[Tensor]:
    """Logits of every sequence, float32.

    Args:
        heads: the head of each sequence, in the caller's order.
        batch: the batch that `x` was encoded from.
        x: [tokens, h] from `encode`.
        fast: pools and classifies; None leaves it to PyTorch.

    Returns:
        One tensor per sequence, in the caller's order: [labels], or [length, labels] where the head reads every token.
    """
    per_token = [i for i, head in enumerate(heads) if head.pooling == "none"]
    if not per_token:
        return _classify_sequences(heads, batch.first, batch.lengths, x, batch.apart, fast)
    logits = dict(zip(per_token, _classify_tokens(heads, batch, x, per_token), strict=True))
    pooled = [i for i, head in enumerate(heads) if head.pooling != "none"]
    if pooled:
        own, spans = [heads[i] for i in pooled], (batch.first[pooled], batch.lengths[pooled])
        logits |= zip(pooled, _classify_sequences(own, *spans, x, batch.apart, fast), strict=True)
    return [logits[i] for i in range(len(heads))]


def _classify_tokens(heads: Sequence[Head], batch: Batch, x: Tensor, chosen: Sequence[int]) -> Iterator[Tensor]:
    """Logits [length, labels] of each chosen sequence: one gather for all, one product for each task."""
    tasks = [[chosen[i] for i in members] for members in _groups((id(heads[i]) for i in chosen), batch.apart)]
    order = [i for members in tasks for i in members]
    lengths = batch.lengths[order]
    counts = dict(zip(order, lengths.tolist(), strict=True))
    tokens = x[_index(_token_indices(batch.first[order], lengths), x)].float()
    logits: dict[int, Tensor] = {}
    shares = torch.split(tokens, [sum(counts[i] for i in members) for members in tasks])
    for members, share in zip(tasks, shares, strict=True):
        head, out = heads[members[0]], share
        for weight, bias in head.dense:
            out = torch.tanh(F.linear(out, weight, bias))
        out = F.linear(out, head.weight, head.bias)
        logits |= zip(members, torch.split(out, [counts[i] for i in members]), strict=True)
    return (logits[i] for i in chosen)


def _classify_sequences(
    heads: Sequence[Head], first: Array, lengths: Array, x: Tensor, apart: bool, fast: HeadKernels | None
) -> list[Tensor]:
    """Logits [labels] of each sequence, from its pooled vector."""
    reading = None if fast is None else fast.prepare(heads, first, lengths, x.device)
    mean = [head.pooling == "mean" for head in heads]
    pooled = pool(first, lengths, x, mean) if fast is None else fast.pool(reading, x)
    for depth in range(max(len(head.dense) for head in heads)):
        pooled = _tanh_layer(heads, pooled, depth, apart)
    if fast is not None and all(head.weight.is_contiguous() and head.bias.is_contiguous() for head in heads):
        return fast.classify(reading, pooled)
    logits: list[Tensor] = [pooled] * len(heads)
    for members in _groups((len(head.bias) for head in heads), apart):
        for i, row in zip(members, _linear([heads[i] for i in members], pooled[_index(members, x)]), strict=True):
            logits[i] = row
    return logits


def pool(first: Array, lengths: Array, x: Tensor, mean: Sequence[bool]) -> Tensor:
    """[sequences, h] float32: the mean over a sequence's tokens where asked, else its first token."""
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
    """[sum of lengths], the index of every token of some sequences, sequence by sequence."""
    before = np.cumsum(lengths) - lengths
    indices: Array = np.arange(lengths.sum()) + np.repeat(first - before, lengths)
    return indices


def _index(positions: Array | Sequence[int], x: Tensor) -> Tensor:
    """Positions as an int64 index on the device of `x`."""
    return upload({0: np.asarray(positions, dtype=np.int64)}, x.device)[0]


def _tanh_layer(heads: Sequence[Head], pooled: Tensor, depth: int, apart: bool) -> Tensor:
    """Applies the `depth`-th tanh layer to the sequences that have one; a shared pooler runs once for all of them."""
    out = pooled.clone()
    having = [i for i, head in enumerate(heads) if len(head.dense) > depth]
    for members in _groups((id(heads[i].dense[depth][0]) for i in having), apart):
        chosen = [having[i] for i in members]
        weight, index = heads[chosen[0]].dense[depth][0], _index(chosen, pooled)
        bias = torch.stack([heads[i].dense[depth][1] for i in chosen])
        out[index] = torch.tanh(F.linear(pooled[index], weight) + bias)
    return out


def _linear(heads: Sequence[Head], pooled: Tensor) -> Tensor:
    """Classifiers of equally many labels: [sequences, h] -> [sequences, labels]."""
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
    found: defaultdict[Hashable, list[int]] = defaultdict(list)
    for i, key in enumerate(keys):
        found[i if apart else key].append(i)
    return list(found.values())
