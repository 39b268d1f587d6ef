"""The kinds of attention scores, by the name that families use."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from onebert_encoder.blocks import disentangled
from onebert_encoder.blocks.folding import LayerFolding
from onebert_encoder.compute.scores import FILLING, PLAIN_SCORES, ByDistance, Rotary, RowScores, Scores
from onebert_store.errors import UnsupportedBase

Param = Callable[[str, int | None], Tensor]


@dataclass(frozen=True)
class Kind:
    """One kind of scores.

    Attributes:
        make: the scores of a layer, from the base's configuration (`EncoderConfig`), its parameters by symbol and
            layer, and the layer's number.
        fold: a task's `RowScores`, from the configuration, the parameters outside the layers, and each layer's.
    """

    make: Callable[[Any, Param, int], Scores]
    fold: Callable[[Any, LayerFolding, Sequence[LayerFolding]], RowScores] = lambda *_: {}


def _relative(config: Any, param: Param, layer: int) -> Scores:
    return ByDistance(by_distance(param("t_r", None), config.max_length))


def _fold_relative(config: Any, outside: LayerFolding, layers: Sequence[LayerFolding]) -> RowScores:
    if outside.difference("t_r") is None:
        return {}
    return {"distances": by_distance(outside.param("t_r"), config.max_length)}


def by_distance(table: Tensor, max_length: int) -> Tensor:
    """MPNet's bias [buckets, heads] as `ByDistance.table` has it, for sequences of at most `max_length` tokens.

    T5 has the same buckets (Raffel et al. 2020, section 2.1): half of them for later tokens, half of these for one
    distance each, the others for ranges that grow up to a distance of 128.
    """
    half = len(table) // 2
    exact = half // 2
    distance = torch.arange(1 - max_length, max_length, device=table.device)
    far = torch.log(distance.abs().clamp_min(1).float() / exact) / math.log(128 / exact) * (half - exact)
    bucket = torch.where(distance.abs() < exact, distance.abs(), (exact + far.long()).clamp_max(half - 1))
    return F.pad(table[bucket + half * (distance < 0)].T, (0, FILLING)).contiguous()


def _rotary(config: Any, param: Param, layer: int) -> Scores:
    theta, window = config.rotary[layer]
    return Rotary(theta, window, config.hidden_size // config.num_heads, config.max_positions)


SCORES: Mapping[str, Kind] = {
    "none": Kind(lambda *_: PLAIN_SCORES),
    "relative": Kind(_relative, _fold_relative),
    "rotary": Kind(_rotary),
    "disentangled": Kind(disentangled.make, disentangled.fold),
}


def scores_of(name: str) -> Kind:
    """The entry of `SCORES`; raises UnsupportedBase without one."""
    if name not in SCORES:
        raise UnsupportedBase(f"its attention scores {name!r} are not computed; computed: {', '.join(SCORES)}")
    return SCORES[name]
