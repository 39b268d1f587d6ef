"""Differences for which steps change the base's own weights: all of them, cut to low rank, pruned; a fresh start."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from onebert_encoder.base.anatomy import Module
from onebert_encoder.base.base import Base
from onebert_store.file.delta import LORA_A, SPARSE_INDEX, SPARSE_VALUE
from onebert_training.methods.low_rank import BYTES, Parts, factorize
from onebert_training.methods.trainables import Tensors, Trainable

# The hard concrete distribution with the constants of Louizos et al. 2018, section 4.
BETA, GAMMA, ZETA = 2 / 3, -0.1, 1.1
# log alpha of every gate at the start. Without noise the gate is fully open:
# sigmoid(2.5) (ZETA - GAMMA) + GAMMA > 1.
OPEN = 2.5
# log alpha is its leaf times this factor. Adam moves all leaves by equal steps, but closing a gate changes log alpha by
# about 5 while the difference behind it changes by some 0.01.
GATE_SPEED = 100.0
# Penalty in units of the loss with all gates open. One gate's share is about 1e-6 on the default base, close to the
# gradient at a gate with a useless difference.
L0_COST = 10.0
WHOLE = "whole."  # of the leaves of `Truncated`
NOISE = "noise"  # name of the constant [seed, step] that seeds a step's noise


@dataclass(frozen=True)
class Full(Trainable):
    """Full fine-tuning of the parameters of these names."""

    names: tuple[str, ...]
    count: int
    prefix: ClassVar[str] = "full."
    changes_base: ClassVar[bool] = True
    servable: ClassVar[bool] = False

    @property
    def num_parameters(self) -> int:
        return self.count

    def init(self, params: Mapping[str, Tensor], generator: torch.Generator) -> Tensors:
        return {f"{self.prefix}{name}": params[name].cpu().clone() for name in self.names}

    def changed(self, params: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensors:
        return {name: values[f"{self.prefix}{name}"] for name in self.names}

    def tensors(self, values: Mapping[str, Tensor]) -> Tensors:
        return {}


@dataclass(frozen=True)
class Truncated(Trainable):
    """A difference of every number of some linear maps, cut to a mean rank of `rank` (decision 55).

    Gradient descent finds better differences of whole matrices than of their factors, and these are nearly of low rank.
    One threshold for all maps chooses the singular parts: a map that changes more keeps more of them. Only training
    steps compute with whole differences.
    """

    rank: int
    prefix: ClassVar[str] = LORA_A
    changes_base: ClassVar[bool] = True

    @property
    def num_parameters(self) -> int:
        """The most numbers that the file can have: factors of `rank` for every map."""
        return sum(self.rank * sum(site.shape) for site in self.sites)

    @property
    def num_trained(self) -> int:
        return sum(math.prod(site.shape) for site in self.sites)

    @property
    def num_bytes(self) -> int:
        return BYTES * self.num_parameters

    def shapes(self, site: Module) -> Mapping[str, tuple[int, ...]]:
        return {f"{WHOLE}{site.name}": site.shape}

    def changed(self, params: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensors:
        weights = {site.name: f"{site.name}.weight" for site in self.sites}
        return {weight: params[weight] + values[f"{WHOLE}{name}"] for name, weight in weights.items()}

    @torch.no_grad()
    def tensors(self, values: Mapping[str, Tensor]) -> Tensors:
        """A and B of each map in half precision; a map that hardly changed has no tensors."""
        wholes = {site.name: values[f"{WHOLE}{site.name}"] for site in self.sites}
        parts = Parts({name: factorize(matrix.cpu()) for name, matrix in wholes.items()}, None)
        tensors = parts.tensors(parts.fitting(self.num_bytes))
        device = wholes[self.sites[0].name].device
        return {name: torch.from_numpy(array).to(device) for name, array in tensors.items()}


@dataclass(frozen=True)
class Pruned(Trainable):
    """Diff pruning (Guo et al. 2020) of some linear maps: the difference is w times a gate z.

    In the first half of the steps the gates are hard concrete (Louizos et al. 2018, equations 10 to 13), with a penalty
    on open gates. Then the `count` largest |z w| of all maps stay, the others become zero, and training continues with
    these indices: their gates' leaves become plus infinity, all others minus infinity. Neither noise nor the optimizer
    moves infinite leaves, so a checkpoint's leaves show that the choice is made.
    """

    count: int
    prefix: ClassVar[str] = SPARSE_VALUE
    changes_base: ClassVar[bool] = True
    averages: ClassVar[bool] = False  # settled gates are infinite

    @property
    def num_parameters(self) -> int:
        return self.count

    @property
    def num_trained(self) -> int:
        return sum(math.prod(site.shape) for site in self.sites)

    @property
    def num_bytes(self) -> int:
        return 8 * self.count

    def init(self, params: Mapping[str, Tensor], generator: torch.Generator) -> Tensors:
        values = {NOISE: torch.tensor([int(torch.randint(2**31, (), generator=generator)), 0])}
        for site in self.sites:
            values[f"pruned.{site.name}"] = torch.zeros(site.shape)
            values[f"gate.{site.name}"] = torch.full(site.shape, OPEN / GATE_SPEED)
        return values

    def changed(self, params: Mapping[str, Tensor], values: Mapping[str, Tensor]) -> Tensors:
        """W + z w with noisy gates."""
        seed, step = values[NOISE].tolist()
        # PyTorch's CPU generator reads only 32 bits of a seed, so seed and step are added.
        noise = torch.Generator(values[NOISE].device).manual_seed(seed + step)
        changes = {name: gate(values[f"gate.{name}"], noise) * values[f"pruned.{name}"] for name in self._names}
        return {f"{name}.weight": params[f"{name}.weight"] + change for name, change in changes.items()}

    def penalty(self, values: Mapping[str, Tensor]) -> Tensor | float:
        """The expected share of open gates (Louizos et al. 2018, equation 12) times `L0_COST`."""
        if self._settled(values):
            return 0.0
        gates = [values[f"gate.{name}"] for name in self._names]
        return L0_COST * torch.cat([open_probability(leaf).view(-1) for leaf in gates]).mean()

    @torch.no_grad()
    def advance(self, step: int, steps: int, values: Mapping[str, Tensor]) -> None:
        """Sets the noise of the next step and, half way, chooses the indices that stay."""
        values[NOISE][1] = step
        if 2 * step < steps or self._settled(values):
            return
        indices = self._indices(values)
        for name, change in self._pruned(values).items():
            values[f"pruned.{name}"].copy_(change)
            values[f"gate.{name}"].fill_(-math.inf).view(-1)[indices[name]] = math.inf

    def tensors(self, values: Mapping[str, Tensor]) -> Tensors:
        out: Tensors = {}
        for name, indices in self._indices(values).items():
            if len(indices):
                out[f"{SPARSE_INDEX}{name}"] = indices
                out[f"{SPARSE_VALUE}{name}"] = self._change(name, values).reshape(-1)[indices]
        return out

    @property
    def _names(self) -> list[str]:
        return [site.name for site in self.sites]

    def _settled(self, values: Mapping[str, Tensor]) -> bool:
        return bool(values[f"gate.{self.sites[0].name}"].view(-1)[0].isinf())

    def _change(self, name: str, values: Mapping[str, Tensor]) -> Tensor:
        return gate(values[f"gate.{name}"]) * values[f"pruned.{name}"]

    def _size(self, name: str, values: Mapping[str, Tensor]) -> Tensor:
        """|z w|, which ranks differences; the gate's leaf ranks those whose gate is closed, so that z w is zero."""
        almost = torch.sigmoid(values[f"gate.{name}"] * GATE_SPEED) * values[f"pruned.{name}"]
        return self._change(name, values).abs() + 1e-6 * almost.abs()

    def _pruned(self, values: Mapping[str, Tensor]) -> Tensors:
        out: Tensors = {}
        for name, indices in self._indices(values).items():
            change = self._change(name, values)
            mask = torch.zeros(change.numel(), dtype=torch.bool, device=change.device).index_fill_(0, indices, True)
            out[name] = torch.where(mask.view_as(change), change, 0.0)
        return out

    @torch.no_grad()
    def _indices(self, values: Mapping[str, Tensor]) -> Tensors:
        """The flat indices that stay, in order; before the choice half way, the `count` largest of all maps."""
        if self._settled(values):
            return {name: (values[f"gate.{name}"].view(-1) > 0).nonzero()[:, 0] for name in self._names}
        sizes = torch.cat([self._size(name, values).view(-1) for name in self._names])
        largest = torch.zeros_like(sizes, dtype=torch.bool).index_fill_(0, sizes.topk(self.count).indices, True)
        chosen = torch.split(largest, [math.prod(site.shape) for site in self.sites])
        return {name: mask.nonzero()[:, 0] for name, mask in zip(self._names, chosen, strict=True)}


def gate(leaf: Tensor, noise: torch.Generator | None = None) -> Tensor:
    """The gate z of a leaf, from 0 to 1: a hard concrete sample, or its value without noise."""
    sample = leaf * GATE_SPEED
    if noise is not None:
        # `eps`: the logit of exactly 0 or 1 would be infinite.
        sample = (torch.rand(leaf.shape, generator=noise, device=leaf.device).logit(eps=1e-6) + sample) / BETA
    return (sample.sigmoid() * (ZETA - GAMMA) + GAMMA).clamp(0, 1)


def open_probability(leaf: Tensor) -> Tensor:
    """The probability that a leaf's noisy gate is above zero."""
    return torch.sigmoid(leaf * GATE_SPEED - BETA * math.log(-GAMMA / ZETA))


def reinitialized(base: Base, generator: torch.Generator) -> Tensors:
    """Random values for every parameter of the base, as before pretraining, on the CPU.

    Every base starts as BERT does: weights and tables normal with deviation 0.02, the padding token's embedding zero,
    biases zero, gains one. ModernBERT's own start has smaller numbers in the maps before a residual.
    """
    params: Tensors = {}
    for name in base.anatomy.weights:
        if base.params[name].dim() == 1:
            # Biases and gains.
            params[name] = torch.full(base.params[name].shape, float(name.endswith(".weight")))
        else:
            params[name] = torch.empty(base.params[name].shape).normal_(0, 0.02, generator=generator)
    params[f"{base.anatomy.path('word')}.weight"][base.config.padding_id] = 0
    return params
