"""The trained tensors: one leaf per tensor of the delta file, how each starts, and how it is written."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from onebert_store.delta import DELTA, HEAD_BIAS, HEAD_WEIGHT, LORA_A, LORA_B
from onebert_training.methods import Plan


@dataclass(frozen=True)
class Unit:
    """The targets of a regression are learned in units of their spread around their mean; 0 and 1 elsewhere."""

    mean: float = 0.0
    spread: float = 1.0


def init_leaves(plan: Plan, num_labels: int, hidden_size: int, seed: int, device: torch.device) -> dict[str, Tensor]:
    """Leaves by the names of the delta file, float32; before training the delta changes nothing."""
    generator = torch.Generator().manual_seed(seed)  # on the CPU, so that every device starts alike
    leaves = {f"{DELTA}{parameter.name}": torch.zeros(parameter.shape) for parameter in plan.parameters}
    for module in plan.modules:
        out, into = module.shape
        bound = 1 / math.sqrt(into)  # LoRA's own: Kaiming uniform with a = sqrt(5)
        leaves[f"{LORA_A}{module.name}"] = torch.empty(plan.rank, into).uniform_(-bound, bound, generator=generator)
        leaves[f"{LORA_B}{module.name}"] = torch.zeros(out, plan.rank)
    leaves[HEAD_WEIGHT] = torch.empty(num_labels, hidden_size).normal_(0, 0.02, generator=generator)
    leaves[HEAD_BIAS] = torch.zeros(num_labels)
    return {name: leaf.to(device).requires_grad_() for name, leaf in leaves.items()}


def file_tensors(leaves: Mapping[str, Tensor], plan: Plan, unit: Unit) -> dict[str, Tensor]:
    """The tensors as the file holds them and `fold` reads them: LoRA's scale and the regression's unit inside."""
    tensors = {name: leaf * plan.scale if name.startswith(LORA_B) else leaf for name, leaf in leaves.items()}
    tensors[HEAD_WEIGHT] = tensors[HEAD_WEIGHT] * unit.spread
    tensors[HEAD_BIAS] = tensors[HEAD_BIAS] * unit.spread + unit.mean
    return tensors
