"""Whole matrices trained, of which the file has the leading singular parts (decision 55)."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from onebert_encoder.base.anatomy import Module
from onebert_store.file.delta import LORA_A
from onebert_training.methods.low_rank import BYTES, Parts, factorize
from onebert_training.methods.trainables import Tensors

WHOLE = "whole."


@dataclass(frozen=True)
class Truncated:
    """A difference of every number of some linear maps, cut to a mean rank of `rank`.

    Gradient descent finds better differences of whole matrices than of their factors, and what it finds is nearly of
    low rank. One threshold for all maps says which singular parts stay: where a map changes more, more of them do.
    Only training steps compute with whole differences.
    """

    sites: tuple[Module, ...]
    rank: int
    prefix: ClassVar[str] = LORA_A
    servable: ClassVar[bool] = True
    averages: ClassVar[bool] = True

    @property
    def num_parameters(self) -> int:
        """Numbers that the file has at most, those of factors of that rank."""
        return sum(self.rank * sum(site.shape) for site in self.sites)

    @property
    def num_trained(self) -> int:
        """The whole differences."""
        return sum(math.prod(site.shape) for site in self.sites)

    @property
    def num_bytes(self) -> int:
        """Two bytes a number."""
        return BYTES * self.num_parameters

    def start(self, params: Mapping[str, Tensor], generator: torch.Generator) -> Tensors:
        """Zeros."""
        return {f"{WHOLE}{site.name}": torch.zeros(site.shape) for site in self.sites}

    def changed(self, params: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensors:
        """W plus the difference."""
        weights = {site.name: f"{site.name}.weight" for site in self.sites}
        return {weight: params[weight] + values[f"{WHOLE}{name}"] for name, weight in weights.items()}

    def penalty(self, values: Mapping[str, Tensor]) -> float:
        """No penalty."""
        return 0.0

    def advance(self, step: int, steps: int, values: Mapping[str, Tensor]) -> None:
        """Nothing changes."""

    @torch.no_grad()
    def tensors(self, values: Mapping[str, Tensor]) -> Tensors:
        """A and B of each map in half precision; a map that hardly changed has none.

        Raises:
            NotFinite: differences without finite singular values.
        """
        wholes = {site.name: values[f"{WHOLE}{site.name}"] for site in self.sites}
        parts = Parts({name: factorize(whole.cpu()) for name, whole in wholes.items()}, None)
        kept = parts.tensors(parts.most(self.num_bytes))
        device = wholes[self.sites[0].name].device
        return {name: torch.from_numpy(array).to(device) for name, array in kept.items()}
