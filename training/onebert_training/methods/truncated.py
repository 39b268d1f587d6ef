"""Trains whole matrices and saves their leading singular parts (decision 55)."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from onebert_store.file.delta import LORA_A
from onebert_training.methods.low_rank import BYTES, Parts, factorize
from onebert_training.methods.trainables import Tensors
from onebert_training.methods.weights import Weights

WHOLE = "whole."


@dataclass(frozen=True)
class Truncated(Weights):
    """A difference of every number of some linear maps, cut to a mean rank of `rank`.

    Gradient descent finds better differences of whole matrices than of their factors, and these are nearly of low rank.
    One threshold for all maps chooses the singular parts: a map that changes more keeps more of them. Only training
    steps compute with whole differences.
    """

    rank: int
    prefix: ClassVar[str] = LORA_A

    @property
    def num_parameters(self) -> int:
        """The most numbers that the file can have: factors of `rank` for every map."""
        return sum(self.rank * sum(site.shape) for site in self.sites)

    @property
    def num_bytes(self) -> int:
        return BYTES * self.num_parameters

    def start(self, params: Mapping[str, Tensor], generator: torch.Generator) -> Tensors:
        return {f"{WHOLE}{site.name}": torch.zeros(site.shape) for site in self.sites}

    def changed(self, params: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensors:
        weights = {site.name: f"{site.name}.weight" for site in self.sites}
        return {weight: params[weight] + values[f"{WHOLE}{name}"] for name, weight in weights.items()}

    @torch.no_grad()
    def tensors(self, values: Mapping[str, Tensor]) -> Tensors:
        """A and B of each map in half precision; a map that hardly changed has no tensors."""
        wholes = {site.name: values[f"{WHOLE}{site.name}"] for site in self.sites}
        parts = Parts({name: factorize(whole.cpu()) for name, whole in wholes.items()}, None)
        kept = parts.tensors(parts.most(self.num_bytes))
        device = wholes[self.sites[0].name].device
        return {name: torch.from_numpy(array).to(device) for name, array in kept.items()}
