"""Folding for DeBERTa's scores: a row's own tables of relative positions.

The maps of queries and keys also map the relative positions r, after their LayerNorm. With b_q' and b_k' in the row's
shift (`Vectors.attention`) q and k are whole, and

    pk = s ∘ (W_k r)                              its bias cancels in the softmax: q_i b_k is the same for every key j
    pq = W_q r + b_q                              k_j b_q is not; the LayerNorms' missing biases are no part of it

A row keeps factors of a low-rank difference (with U Σ R and Vᵀ of LoRA-XS), a whole table for a sparse one.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.blocks.folding import LayerFolding
from onebert_encoder.compute.disentangled import Disentangled, score_name
from onebert_encoder.compute.scores import RowScores
from onebert_encoder.layout.branches import Branch, Core, LowRank

Param = Callable[[str, int | None], Tensor]


def make(config: Any, param: Param, layer: int) -> Disentangled:
    """`Kind.make` of DeBERTa's scores."""
    r, factors = _positions(config, lambda symbol: param(symbol, None)), _factors(config)
    pq = F.linear(r, param("W_q", layer), param("b_q", layer)) * factors["q"]
    return Disentangled(layer, pq, F.linear(r, param("W_k", layer)) * factors["k"], of_distance(config))


def fold(config: Any, outside: LayerFolding, layers: Sequence[LayerFolding]) -> RowScores:
    """`Kind.fold` of DeBERTa's scores."""
    r, tensors = _positions(config, outside.param), dict[str, Tensor]()
    for layer, folding in enumerate(layers):
        for part, factor in _factors(config).items():
            changes = {**_maps(folding.differences(part), r, factor), **_vectors(folding, part, factor)}
            tensors |= {score_name(layer, part, kind): tensor for kind, tensor in changes.items()}
    return tensors


def _positions(config: Any, param: Callable[[str], Tensor]) -> Tensor:
    return F.layer_norm(param("t_d"), (config.hidden_size,), param("g_LNd"), param("b_LNd"), config.eps)


def _factors(config: Any) -> Mapping[str, float]:
    """The factor of each table; `Disentangled.turn` has the queries' √3."""
    d = config.hidden_size // config.num_heads
    return {"q": (3 * d) ** -0.5, "k": d**-0.5}


def _maps(differences: Sequence[Branch], r: Tensor, factor: float) -> RowScores:
    factors, left, right = dict[str, Tensor](), [], []
    for branch in differences:
        if isinstance(branch, LowRank):
            left.append(r @ branch.A.T)
            right.append(branch.B.T)
        elif isinstance(branch, Core):
            rank = len(branch.R)
            left.append(r @ branch.shared.down[:rank].T @ branch.R.T)
            right.append(branch.shared.up[:, :rank].T)
        else:
            factors["difference"] = branch(r) * factor
    return {**factors, "left": torch.cat(left, 1) * factor, "right": torch.cat(right)} if left else factors


def _vectors(folding: LayerFolding, part: str, factor: float) -> RowScores:
    bias = folding.difference("b_q") if part == "q" else None
    scale = folding.scale("k") if part == "k" else None
    vectors = {"bias": None if bias is None else bias * factor, "scale": scale}
    return {kind: tensor for kind, tensor in vectors.items() if tensor is not None}


def of_distance(config: Any) -> Tensor:
    """`Disentangled.of_distance`: near distances one by one, ranges that grow with the distance behind them."""
    span: int = config.relative_buckets
    max_length: int = config.max_length
    distance, middle = torch.arange(1 - max_length, max_length), span // 2
    # In the order of operations of DeBERTa's authors: `ceil` makes another bucket of another rounding.
    far = distance.abs().clamp_min(middle) / middle
    grown = torch.ceil(torch.log(far) / torch.log(torch.tensor((max_length - 1) / middle)) * (middle - 1)) + middle
    bucket = torch.where(distance.abs() <= middle, distance, grown.long() * distance.sign())
    return (bucket + span).clamp(0, 2 * span - 1)
